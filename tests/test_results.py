"""Results as lists, as text and as tables."""

import sys

import pandas
import pyarrow
import pytest

from qpr_jax.index.protocol import Hit
from qpr_jax.results import Hits, Results
from tests.refused import check_refused

FIRST = [Hit(7, "How to cook rice?", 0.25, 0.9), Hit(3, "What is rice?", 1.5)]
SECOND = [Hit(3, "What is rice?", 0.5, None)]
RESULTS = Results.of(["cook rice", "rice"], [FIRST, SECOND])
COLUMNS = ["query_number", "query", "rank", "id", "question", "distance", "score"]


def with_payload(*payloads):
    """Results of one query, a hit a payload."""
    hits = [Hit(i, f"question {i}", float(i), None, payload) for i, payload in enumerate(payloads)]
    return Results.of(["a"], [hits])


def test_they_are_lists_and_texts():
    assert [FIRST, SECOND] == RESULTS
    assert [hits.query for hits in RESULTS] == ["cook rice", "rice"]
    assert repr(RESULTS) == (
        '2 queries, 3 hits\n"cook rice":\n'
        "     distance  score  id  question\n"
        "  1     0.250  0.900   7  How to cook rice?\n"
        "  2     1.500          3  What is rice?\n"
        '"rice":\n'
        "     distance  id  question\n"
        "  1     0.500   3  What is rice?"
    )
    assert repr(Results()) == "0 queries, 0 hits"
    assert repr(Hits("x")) == '"x":\n  (no hits)'


def test_much_is_counted_and_not_printed():
    results = Results.of(map(str, range(12)), [[FIRST[0]] * 21] * 12)
    assert len(repr(results).splitlines()) == 1 + 10 * (1 + 1 + 20 + 1) + 1
    assert repr(results).endswith("... and 1 more hit\n... and 2 more queries")


def test_what_a_terminal_would_act_on_is_escaped():
    payload = {"<u>\x1b": "&", "n": [1]}
    shown = repr(Hits("\x1b", [Hit("a\n", "b\u202e\ud800", 0.25, None, payload)]))
    assert shown.splitlines() == [
        r'"\x1b":',
        r"     distance  id  question       <u>\x1b  n",
        r"  1     0.250   a  b\u202e\ud800  &        [1]",
    ]


def test_tables():
    frame, table = RESULTS.to_pandas(), RESULTS.to_arrow()
    expected = {
        "query_number": [0, 0, 1],
        "query": ["cook rice", "cook rice", "rice"],
        "rank": [1, 2, 1],
        "id": [7, 3, 3],
        "question": ["How to cook rice?", "What is rice?", "What is rice?"],
        "distance": [0.25, 1.5, 0.5],
        "score": [0.9, None, None],
    }
    assert table.to_pydict() == expected
    assert frame.astype(object).where(frame.notna(), None).to_dict("list") == expected
    assert frame["id"].dtype == "int64"
    assert table.schema.field("id").type == pyarrow.int64()
    assert table.schema.field("score").type == pyarrow.float64()
    assert [*RESULTS[0].to_pandas()] == RESULTS[1].to_arrow().column_names == COLUMNS[2:]
    assert len(RESULTS[0].to_pandas()) == 2


@pytest.mark.parametrize("results", [Results(), Results.of(["a"], [[]])])
def test_tables_without_hits(results):
    assert [*results.to_pandas()] == COLUMNS
    assert results.to_arrow().schema == RESULTS.to_arrow().schema
    types = RESULTS.to_pandas().dtypes.drop("id")
    pandas.testing.assert_series_equal(results.to_pandas().dtypes.drop("id"), types)


def test_payload_has_a_column_a_field():
    results = with_payload({"url": "u", "views": 2**53 + 1}, None, {"views": 0, "new": True})
    table, frame = results.to_arrow(), results.to_pandas()
    assert table.column_names == [*frame] == [*COLUMNS, "url", "views", "new"]
    assert table.column("views").to_pylist() == [2**53 + 1, None, 0]
    assert frame["views"].dtype == "Int64"  # as float64 it would be another number
    assert frame["views"][0] == 2**53 + 1
    assert frame["new"].dtype == "boolean"
    assert frame["url"][0] == "u"


def test_fields_with_the_name_of_a_column():
    results = with_payload({"id": 1, "payload_id": 2, "query": "q", "x": 3})
    names = ["payload_payload_id", "payload_id", "payload_query", "x"]
    assert results.to_arrow().column_names[len(COLUMNS) :] == names
    row = results.to_pandas().iloc[0]
    assert [row[name] for name in names] == [1, 2, "q", 3]
    # The table of one query has no column `query`.
    assert [*results[0].to_pandas()][-2:] == ["query", "x"]


def test_values_without_a_common_type():
    for values, expected in (
        ([1, 2.5], [1, 2.5]),
        ([1, "a"], ["1", "a"]),
        ([True, 2], ["true", "2"]),
        ([[1], {"b": None}], ["[1]", '{"b": null}']),
        ([2**70, None], [str(2**70), None]),
        (["\ud800", None], ["\ufffd", None]),
        ([["\ud800"]], ['["\\ud800"]']),
        ([None, None], [None, None]),
        ([{"a": 1}, {"b": "x"}], [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
    ):
        results = with_payload(*({"x": value} for value in values))
        assert results.to_arrow().column("x").to_pylist() == expected
        cells = [*results.to_pandas()["x"]]
        none = [pandas.api.types.is_scalar(v) and pandas.isna(v) for v in cells]
        assert [None if n else v for n, v in zip(none, cells, strict=True)] == values
    table = with_payload({"x": 2**53 + 1}, {"x": 2.5}).to_arrow()
    assert table.column("x").to_pylist() == ["9007199254740993", "2.5"]  # no float64 has both


def test_without_the_package(monkeypatch):
    for package in ("pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, package, None)
    check_refused(
        lambda method: getattr(RESULTS, method)(),
        ("to_pandas", "expected the package pandas, found none; pip install pandas"),
        ("to_arrow", r"the package pyarrow, found none; pip install '\.\[parquet\]' in a checkout"),
    )
