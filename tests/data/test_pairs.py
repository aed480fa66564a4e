"""Labeled pairs are read alike in every format."""

import csv
import json

import numpy as np
import pandas as pd
import pytest

from qpr_jax.data.labeled_pairs import read_labeled
from qpr_jax.data.pairs import pair_columns, read_question_pairs
from qpr_jax.data.quora import HEADER, read_quora
from qpr_jax.data.quoted_tsv import write_rows
from qpr_jax.errors import UserError

ROWS = [
    (0, 11, 12, "How?", 'How, "so"?', 1),
    (1, 11, 13, "How?", "two\nlines", 0),
    (2, 14, 13, "Who?", "two\nlines", 0),
]


def write_csv(path, header, rows, **how):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, **how).writerows([header, *rows])


@pytest.fixture
def written(tmp_path):
    """The same pairs in every format, with Quora's columns: name -> path."""
    paths = {
        name: tmp_path / f"pairs.{name}" for name in ("tsv", "csv", "jsonl", "parquet", "json")
    }
    with paths["tsv"].open("w", newline="\n") as file:
        write_rows(file, HEADER, ROWS)
    write_csv(paths["csv"], HEADER, ROWS)
    records = [dict(zip(HEADER, row, strict=True)) for row in ROWS]
    paths["jsonl"].write_text("".join(json.dumps(record) + "\n" for record in records))
    paths["json"].write_text(json.dumps(records))
    pd.DataFrame(records).to_parquet(paths["parquet"])
    return paths


def test_every_format_has_the_same_pairs(written):
    expected = read_quora(written["tsv"])
    for name, path in written.items():
        found = read_question_pairs(path)
        assert found.questions == expected.questions, name
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.pairs, expected.pairs)
        np.testing.assert_array_equal(found.is_duplicate, expected.is_duplicate)
        assert found.report == expected.report
        assert read_labeled(str(path)).questions == expected.questions
        assert {*HEADER} == {*pair_columns(str(path))}


def test_without_ids_questions_are_numbered_by_their_text(tmp_path):
    path = tmp_path / "pairs.csv"
    write_csv(path, HEADER[3:], [row[3:] for row in ROWS], delimiter=";")
    found = read_question_pairs(path)
    assert found.questions == ["How?", 'How, "so"?', "two\nlines", "Who?"]
    assert found.ids.tolist() == [0, 1, 2, 3]
    assert found.pairs.tolist() == [[0, 1], [0, 2], [3, 2]]
    assert len(read_question_pairs(path, max_rows=1).pairs) == 1


def test_ids_that_are_strings_are_numbered(tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [("u1", "u2", "a", "b", True), ("u3", "u1", "a", "a", "1.0"), ("u4", "7", "x", None, 0)]
    names = HEADER[1:]
    path.write_text("".join(json.dumps(dict(zip(names, r, strict=True))) + "\n" for r in rows))
    found = read_question_pairs(path)
    assert found.questions == ["a", "b", "x", ""]
    assert found.ids.tolist() == [0, 1, 3, 4]
    assert found.is_duplicate.tolist() == [True, False]  # the second pairs a question with itself


def test_a_blank_id_is_none(tmp_path, caplog):
    caplog.set_level("WARNING", logger="qpr_jax")
    path = tmp_path / "pairs.csv"
    write_csv(path, HEADER[1:], [(1, "", "a", "b", 1), ("", 2, "c", "d", 0)])
    found = read_question_pairs(path)
    assert found.questions == ["a", "b", "c", "d"]
    assert found.pairs.tolist() == [[0, 1], [2, 3]]
    assert "not all ids are whole numbers; questions are numbered from 0" in caplog.messages[0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "question1,question2\na,b\n",
            "expected the columns question1, question2, is_dup",
        ),
        (
            "a.csv",
            "question1,question2,is_duplicate\na,b,maybe\n",
            "line 2: .* 0 or 1, got 'maybe'",
        ),
        ("a.csv", "question1,question2,is_duplicate\n", "got no good row and 0 bad ones"),
        ("a.jsonl", '{"question1": "a"}\n', "line 1: expected `question2`, got"),
        (
            "a.jsonl",
            '{"question1": 1, "question2": "b", "is_duplicate": 1}\n',
            "line 1: expected a question in `question1`, got 1",
        ),
        ("a.txt", "one\ntwo\n", "expected the columns question1"),
    ],
)
def test_what_are_no_pairs(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_question_pairs(path)
    with pytest.raises(UserError):
        read_labeled(str(path))


def test_bad_rows_are_counted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("question1,question2,is_duplicate\na,b,1\na,b\na,c,2\nd,e,0\n")
    found = read_question_pairs(path, skip_bad_rows=True)
    assert (len(found.pairs), found.report["skipped_rows"]) == (2, 2)


def test_what_is_no_file_of_pairs(tmp_path):
    (tmp_path / "q.csv").write_text("id,question\n1,a\n")
    for name in ("q.csv", "none.csv", "-"):
        assert pair_columns(str(tmp_path / name) if name != "-" else name) == []
