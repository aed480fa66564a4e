"""A review of first hits: which queries are drawn, and what their labels say."""

import numpy as np
import pytest

from qpr_jax import Retriever, find_duplicates
from qpr_jax.data.question_pairs import read_question_pairs
from qpr_jax.data.tables import read_table
from qpr_jax.duplicates.output import INFO, read_other_columns
from qpr_jax.duplicates.review import describe_review, open_review
from qpr_jax.duplicates.sampling import share_of_right, write_first_hits
from qpr_jax.errors import UserError
from qpr_jax.files import write_json
from tests import tables

QUESTIONS = [f"how do i cook {word}" for word in ("rice", "beans", "corn", "fish")]


@pytest.fixture
def folder(tmp_path):
    rows = [{"id": f"a{i}", "text": text, "shelf": i or None} for i, text in enumerate(QUESTIONS)]
    retriever = Retriever.build(rows, encoder="open_student")
    asked = ["How do I cook rice?", "cooking beans", "is corn done", "fish recipe", "more fish"]
    tables.write_table(tmp_path / "q.csv", ["query", "id"], [(text, "x") for text in asked * 2])
    write_first_hits(tmp_path / "out", retriever, read_table(tmp_path / "q.csv", id=None), 4)
    return tmp_path / "out"


def test_drawn_queries_are_asked_once_with_the_columns_of_their_hits(folder):
    rows = tables.read_table(folder / "pairs.csv")
    assert len(rows) == len({row["question1"] for row in rows}) == 4
    lines = [int(row["id1"]) for row in rows]
    assert lines == sorted(lines)
    for row in rows:
        word = next(word for word in ("rice", "bean", "corn", "fish") if word in row["question1"])
        assert word in row["question2"]
    assert set(lines) <= {2, 3, 4, 5, 6}
    with open_review(str(folder / "pairs.csv"), folder / "labels.csv", precision=0.9) as review:
        while review.current is not None:
            shown = describe_review(review)["pair"]
            place = shown["id2"].removeprefix("a")
            assert shown["columns2"] == ([["shelf", place]] if place != "0" else [])
            assert shown["columns1"] == []
            assert review.judge(review.current, True)
        described = describe_review(review)["estimate"]
    with pytest.raises(UserError, match="expected labels of found pairs, got labels of first hits"):
        read_question_pairs(folder / "labels.csv", weighted=True)  # as `qpr calibrate` does
    with open_review(str(folder / "pairs.csv"), folder / "labels.csv", precision=0.9) as review:
        assert review.current is None
    assert described["option"] == ""
    assert described["precision"] == 1
    assert 0.5 < described["low"] < described["high"] == 1


def test_the_interval_is_that_of_wilson_and_copies_are_right():
    found = share_of_right(7, 3, 0, 10)
    z, n, p = 1.6448536269514722, 10, 0.7
    middle = (p + z * z / 2 / n) / (1 + z * z / n)
    error = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / 4 / n / n)
    assert (found.low, found.high) == pytest.approx((middle - error, middle + error))
    # Of 20 pairs half have a label: the copies count as far as these do.
    half = share_of_right(6, 4, 20, 20)
    assert half.precision == pytest.approx(0.8)
    labeled = share_of_right(16, 4, 0, 40)
    assert (half.low, half.high) == pytest.approx((labeled.low, labeled.high))
    whole = share_of_right(12, 8, 20, 20)
    assert whole.precision == pytest.approx(0.8)
    assert whole.high - whole.low < half.high - half.low
    assert (whole.pairs, whole.labels) == (40, 20)


def test_no_queries_are_refused(tmp_path):
    (tmp_path / "q.txt").write_text("\n")
    with pytest.raises(UserError, match=r"q\.txt: expected queries, got none"):
        write_first_hits(tmp_path, Retriever.build(QUESTIONS), read_table(tmp_path / "q.txt"), 3)


@pytest.mark.parametrize("output", ["csv", "tsv", "jsonl"])
def test_the_other_columns_of_both_rows_are_read(tmp_path, output):
    rows = [{"key": f"k{i}", "text": text, "team": f"t{i}"} for i, text in enumerate(QUESTIONS)]
    rows.append({"key": "k9", "text": "How do I cook rice?", "team": ""})
    found = find_duplicates(rows, id_column="key", encoder="open_student")
    found.write(tmp_path, output)
    names = [f"{name}.{output}" for name in ("pairs", "groups", "deduplicated")]
    write_json(tmp_path / INFO, found.facts() | {"files": names})
    first, second = read_other_columns(tmp_path / names[0])
    assert first == second
    assert first["k0"] == {"team": "t0"}
    assert first.get("k9", {}) == {}


def test_with_another_table_ids_are_of_their_own_table(tmp_path):
    old = [{"id": i, "text": text, "team": f"old {i}"} for i, text in enumerate(QUESTIONS)]
    new = [{"id": 0, "text": "How do I cook beans?", "team": "new"}]
    found = find_duplicates(new, against=old, encoder="open_student")
    found.write(tmp_path)
    names = ["pairs.csv", "groups.csv", "deduplicated.csv"]
    write_json(tmp_path / INFO, found.facts() | {"files": names})
    first, second = read_other_columns(tmp_path / "pairs.csv")
    assert (first["0"], second["1"]) == ({"team": "new"}, {"team": "old 1"})
