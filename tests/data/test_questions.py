"""Tables in memory are read as files are; what cannot be read is one clear line."""

import csv
import datetime
import decimal
import functools
import gzip
import json
import uuid

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from qpr_jax.data.entries import to_json
from qpr_jax.data.tables import Entry, as_entries, as_queries, read_table
from qpr_jax.errors import UserError
from tests.refused import check_refused

COLUMNS = {"id": ["a", "7"], "question": ["how?", "why 😀"], "n": [1, 2]}
EXPECTED = [Entry(0, "a", "how?", {"n": 1}), Entry(1, "7", "why 😀", {"n": 2})]


class Stream:
    """A table that has an Arrow C stream and nothing else."""

    def __arrow_c_stream__(self, requested_schema=None):
        return pa.table(COLUMNS).__arrow_c_stream__(requested_schema)


ROWS = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
TABLES = {
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas index": lambda: pd.DataFrame(COLUMNS).set_index("id"),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "lazy": lambda: pl.LazyFrame(COLUMNS),
    "arrow": lambda: pa.table(COLUMNS),
    "reader": lambda: pa.table(COLUMNS).to_reader(),
    "stream": Stream,
    "mappings": lambda: ROWS,
    "iterator": lambda: iter(ROWS),
}


def test_any_table():
    for kind, table in TABLES.items():
        assert list(as_entries(table())) == EXPECTED, kind


INDEXES = [
    ([0, 1], {}, [None, None]),
    ([1, 2], {}, [1, 2]),
    (["x", "y"], {}, ["x", "y"]),
    (["x", "y"], {"id_column": ""}, [None, None]),
    (["x", "x"], {}, [None, None]),
    ([-1, 2], {}, [None, None]),
    ([0.5, 2], {}, [None, None]),
]


def test_the_index_of_pandas_is_the_id():
    for index, how, ids in INDEXES:
        table = pd.DataFrame({"question": ["a", "b"]}, index=index)
        for given in (table, table.question):
            assert [entry.id for entry in as_entries(given, **how)] == ids, index
        table["id"] = ["p", "q"]
        assert [entry.id for entry in as_entries(table)] == ["p", "q"]


def test_the_path_of_a_file_and_what_it_has(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,question,n\n7,how?,1\nx,b,2\n")
    entries = [Entry(2, 7, "how?", {"n": "1"}), Entry(3, "x", "b", {"n": "2"})]
    assert [*as_entries(path)] == [*as_entries(str(path))] == [*as_entries(entries)] == entries
    with pytest.raises(UserError, match=r"none.csv: does not exist"):
        list(as_entries(tmp_path / "none.csv"))


def test_a_table_of_a_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("key,asked,n,more\n7,how?,1,x\nb,why?,,\n")
    table = read_table(path, text="asked", id="key", payload=["n"])
    assert [*table] == [*table] == [*as_entries(table)] == table.entries
    assert (table.texts, table.ids, table.columns) == (["how?", "why?"], [7, "b"], {"n": ["1", ""]})
    assert table.to_dicts()[0] == {"id": 7, "question": "how?", "n": "1"}
    assert [*as_entries(table.to_dicts())][1][1:] == table.entries[1][1:]
    assert table.to_pandas().to_dict("records") == table.to_dicts()
    both = read_table([path, path], text="asked", id="key")
    assert (both.ids, both.chosen.names) == ([7, "b"] * 2, ("key", "asked", "n", "more"))
    plain = read_table(path, text="asked", id=None, payload=False)
    assert plain.to_dicts()[1] == {"id": None, "question": "why?"}
    said = r"a\.csv: expected a column `none`, got `key`"
    check_refused(lambda text: read_table(path, text=text).texts, ("none", said))


TEXTS = ["a", "b"]


def test_any_texts():
    kinds = (tuple, iter, np.array, pd.Series, pl.Series, pa.array, lambda t: pa.chunked_array([t]))
    for kind in kinds:
        entries = list(as_entries(kind(TEXTS), payload=[{"x": 1}, None]))
        assert entries == [Entry(0, None, "a", {"x": 1}), Entry(1, None, "b")]
        assert {type(entry.question) for entry in entries} == {str}


def test_which_columns():
    table = pd.DataFrame({"Key": [1], "Asked": ["q"], "id": ["x"], "more": [2], "less": [3]})
    named = {"text_column": "Asked"}
    mixed = pd.DataFrame({"Title": ["t"], "Question": ["q"], "ID": [3], "uuid": ["u"]})
    assert next(as_entries(mixed)) == Entry(0, 3, "q", {"Title": "t", "uuid": "u"})
    found = next(as_entries(table, id_column="Key", **named))
    assert found == Entry(0, 1, "q", {"id": "x", "more": 2, "less": 3})
    assert next(as_entries(table, payload=["less"], **named)) == Entry(0, "x", "q", {"less": 3})
    assert next(as_entries(table, payload="less", **named)).payload == {"less": 3}
    assert next(as_entries(table, id_column="", payload=False, **named)) == Entry(0, None, "q")
    assert next(as_entries(table, ids=["mine"], payload=["id"], **named)).id == "mine"
    assert as_queries(table, "Asked") == ["q"]
    assert as_queries(pd.DataFrame({"Customer's question": ["q?"]})) == ["q?"]
    assert as_queries(["", "b"]) == ["", "b"]
    assert next(as_entries(pd.DataFrame({0: ["a"], 1: [2]}), text_column=0)).payload == {"1": 2}
    many = pd.DataFrame({f"c{i}": [i] for i in range(99)})
    with pytest.raises(UserError, match=r"got `c0`, `c1`.*`c19` and 79 others; name the ques"):
        list(as_entries(many))


NAMES_OF_TEXTS = """customer_message user_query customerMessage USER_QUESTION ticket.subject
    user-query message_body query_string FAQQuestion queries_raw Ticket_Subject Question_(EN)
    Subject_line Text_of_the_mail Message_from_customer customer's_question my_titles Enquiries
    text/question message_to_us"""
OTHER_NAMES = """question_id text_length title_date is_question message_count question_category
    questionId Question_No. Question_# num_questions number_of_questions date_of_message has_text
    query_time question_url prompt_tokens text_hash answer_text nQueries title_slug asked_at context
    texture question1 message_sent_at textLength Where_is_my_question? isQuestion"""


@pytest.mark.parametrize("blank", [" ", "_"])
def test_the_only_name_of_a_text_is_the_column_of_questions(tmp_path, blank):
    path = tmp_path / "asked.csv"
    others = [name.replace("_", blank) for name in OTHER_NAMES.split()]
    for name in (name.replace("_", blank) for name in NAMES_OF_TEXTS.split()):
        row = dict.fromkeys(others, "7") | {name: "how?"}
        assert [entry.question for entry in as_entries(pd.DataFrame([row]))] == ["how?"], name
        path.write_text(",".join(row) + "\n" + ",".join(row.values()))
        assert read_table(path).texts == ["how?"], name
        assert read_table([path], text="text hash".replace(" ", blank)).texts == ["7"]
        path.write_text(json.dumps(row | {"Query": "why?"}))
        assert read_table(path, format="jsonl").texts == ["why?"], name  # a usual name is first
    for name in others:
        with pytest.raises(UserError, match="expected a column of questions"):
            list(as_entries([{name: "7", "case": "8"}]))


def test_names_of_texts_come_first_where_there_are_several():
    row = {"case": "7", "first_message": "a", "received": "b", "Last message": "c"}
    said = "expected a column of questions .* got `first_message`, `Last message`, `case`, `rec"
    check_refused(lambda row: [*as_entries([row])], (row, said))


def test_a_body_is_the_question_where_no_other_column_is(tmp_path):
    for name in ("Body", "content "):
        assert next(as_entries([{"from": "7", name: "how?"}])).question == "how?"
        (tmp_path / "a.csv").write_text(f"#,{name}\n7,how?\n")
        assert read_table(tmp_path / "a.csv").texts == ["how?"]
        row = {name: "7", "Last message": "a"}
        assert next(as_entries([row])).question == "a"
    said = "expected a column of questions .* got `body`, `content`, `from`; name the question's"
    row = {"from": "7", "body": "a", "content": "b"}
    check_refused(lambda row: [*as_entries([row])], (row, said))


def test_a_first_row_with_a_number_is_no_header(tmp_path):
    (tmp_path / "a.csv").write_text("12,change my text\n13,where is it\n")
    check_refused(lambda path: [*read_table(path)], (tmp_path / "a.csv", "expected a column of"))


def test_ids_of_columns():
    table = pd.DataFrame({"question": ["a", "b"], "id": [7.0, np.nan]})
    assert [entry.id for entry in as_entries(table)] == [7, None]
    key = uuid.UUID(int=5)
    decimals = [decimal.Decimal("7"), decimal.Decimal("7.5"), np.uint64(2**63), -1, key]
    rows = [{"question": "a", "id": value} for value in decimals]
    assert [e.id for e in as_entries(rows)] == [7, "7.5", str(2**63), "-1", str(key)]
    table = pd.DataFrame({"question": ["a", None, "c"]})
    entries = list(as_entries(table, ids=["x", "y", key], skip_bad_rows=True))
    assert [entry.id for entry in entries] == ["x", str(key)]


DEEP = functools.reduce(lambda value, _: {"a": value}, range(5000), {})
WRONG = [
    (pd.DataFrame({"a": ["x"], "b": [1]}), {}, "`questions`: expected a column of .*`a`, `b`;"),
    (pd.DataFrame(), {}, "expected a column of questions .*, got none"),
    (pd.DataFrame({3: ["a"], "b": [1]}), {"text_column": "c"}, "`c`, got `3`, `b`; na"),
    (pd.DataFrame({"question": ["a"]}), {"payload": ["c"]}, "others with `payload`"),
    (pd.DataFrame({"question": ["a"]}), {"id_column": "c"}, "`id_column`"),
    (pd.DataFrame([["a", "b"]], columns=["text"] * 2), {}, "columns with distinct names; rename"),
    (pa.table([["a"], ["b"]], names=["q", "q"]), {}, "distinct names|one column `q`, got 2"),
    (pd.DataFrame({"question": ["a", None]}), {}, "position 1: .* a question .* got None"),
    (pd.DataFrame({"question": ["a"], "id": [1.5]}), {}, "expected a whole number from 0"),
    (["a", " "], {}, "position 1: expected a question .* got ' '; .*`skip_bad_rows=True`"),
    ([{"question": "a"}, "b"], {}, "position 1: expected a mapping, got str"),
    ([{"question": "a"}, {"q": "b", "r": 1}], {}, "position 1: .* got `q`, `r`"),
    ([{"question": "a", "x": DEEP}], {}, "position 0: .* nested less deeply"),
    (["a"], {"payload": [DEEP]}, "`payload`: .* nested less deeply at position 0"),
    (csv.DictReader(["question,n", "b,2,3"]), {}, "position 0: expected 2 cells, .* got more"),
    (csv.reader(["a,b"]), {}, "expected strings, got list at position 0"),
    ({"question": ["a"]}, {}, "list of strings, got a dict; give pandas.DataFrame"),
    (5, {}, "expected a list of strings, got int"),
    (["a", "b"], {"ids": [1]}, r"`ids`: expected one a question \(2\), got 1"),
    (["a", "b"], {"ids": "xy"}, r"expected a list of ids, got a str; pass \[ids\]"),
    (["a", "b"], {"payload": [{}]}, r"`payload`: expected a mapping a question \(2\), got 1"),
    (["a"], {"payload": [3]}, "expected a mapping a question, got int at position 0"),
]


def test_what_cannot_be_read_is_one_line():
    check_refused(lambda questions, how: list(as_entries(questions, **how)), *WRONG)


def test_a_string_is_a_file_by_its_suffix_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, said in (
        ("invoice", r"got str; pass \[against\], or pathlib.Path\(against\)"),
        ("invoice.txt", r"got str; pass pathlib.Path\(against\) for a file"),
    ):
        (tmp_path / name).write_text("how?\n")
        said = rf"`against`: expected .* strings, {said}"
        check_refused(lambda given: [*as_entries(given, name="against")], (name, said))
        assert as_queries(name) == [name]
        assert [entry.question for entry in as_entries(tmp_path / name)] == ["how?"]
        assert as_queries(tmp_path / name) == ["how?"]
    with gzip.open("invoice.CSV.gz", "wt") as file:
        file.write("question\nwhy?\n")
    assert [entry.question for entry in as_entries("invoice.CSV.gz")] == ["why?"]
    assert as_queries("invoice.CSV.gz") == ["invoice.CSV.gz"]
    said = r"`questions`: found no file 'ticketz.csv'; correct its name; pass \[questions\] if"
    check_refused(lambda given: [*as_entries(given)], ("ticketz.csv", said))


PAYLOAD = [
    (pd.Timestamp("2020-01-02"), "2020-01-02T00:00:00"),
    (datetime.date(2020, 1, 2), "2020-01-02"),
    (datetime.timedelta(seconds=90), 90.0),
    (decimal.Decimal("1.50"), "1.50"),
    (b"text", "text"),
    (b"\xff", r"\xff"),
    (pd.NaT, None),
    (pd.NA, None),
    (np.float32(0.5), 0.5),
    (np.array([1, 2]), [1, 2]),
    (np.datetime64("2020-01-02T03:04", "ns"), "2020-01-02T03:04:00.000000000"),
    (np.array(["2020-01-02"], "datetime64[D]"), ["2020-01-02"]),
    (np.timedelta64(90, "s"), 90.0),
    ({1: (True, None, np.int64(3))}, {"1": [True, None, 3]}),
]


def test_payload_is_json():
    for value, expected in PAYLOAD:
        assert to_json(value) == expected


@pytest.mark.parametrize("number", [float("nan"), np.float32("-inf")])
def test_numbers_that_json_lacks_are_text_and_never_become_null(tmp_path, number):
    text = json.dumps(float(number))
    for value, kept in (([number], [text]), ({"a": number}, {"a": text})):
        assert to_json(value) == kept
    assert to_json(np.array([1.0, number])) == [1.0, text]
    with pytest.raises(UserError, match=r"`payload`: expected .* JSON can hold .* at position 1"):
        list(as_entries(["a", "b"], payload=[{}, {"x": number}]))
    path = tmp_path / "q.jsonl"
    path.write_text(f'{{"question": "a", "x": [{text}, 1e999]}}')
    assert read(str(path))[0].payload == {"x": [text, "Infinity"]}


def read(path, **how):
    return [*read_table(path, **how)]


def test_parquet_of_odd_columns(tmp_path):
    def table(names, *columns):
        path = tmp_path / "a.parquet"
        pyarrow.parquet.write_table(pa.table(list(columns), names=names), path)
        return str(path)

    broken = pa.array([b"one", b"\xff", b"three"], pa.binary()).view(pa.string())
    path = table(["question", "id"], broken, [4, 5, 6])
    check_refused(read, (path, "line 2: expected UTF-8"))
    assert read(path, skip_bad_rows=True) == [Entry(1, 4, "one"), Entry(3, 6, "three")]
    with pytest.raises(UserError, match="expected one column `question`, got 2"):
        read(table(["question", "question"], ["a"], ["b"]))
    assert read(table(["question", "a.b"], ["a"], ["b"]))[0].payload == {"a.b": "b"}
    folder = tmp_path / "spark.parquet"
    folder.mkdir()
    (folder / "_SUCCESS").write_text("")
    for name in ("part-1.parquet", "part-0.parquet"):
        pyarrow.parquet.write_table(pa.table([[name]], names=["question"]), folder / name)
    entries = read(str(folder))
    assert [entry.question for entry in entries] == ["part-0.parquet", "part-1.parquet"]
    assert [*as_entries(folder)] == [*as_entries(str(folder))] == entries
    (folder / "part-2.parquet").write_text("no Parquet")
    check_refused(read, (str(folder), r"spark\.parquet/part-2\.parquet: expected Parquet \("))
    path = table(["asked", "__index_level_0__"], ["a"], [3])
    assert read(path, text="asked") == [Entry(1, None, "a")]
