"""Labeled pairs: Quora's file, any other table, and pairs to score by."""

import numpy as np
import pyarrow.parquet
import pytest

from qpr_jax.data.question_pairs import PAIRS_HEADER, gather_pairs, read_question_pairs
from qpr_jax.errors import UserError
from tests.refused import check_refused
from tests.tables import HEADER, write_table

GOOD = "1\t11\t12\tHow?\tHow so?\t1\n"
ROWS = [
    (0, 0, 12, "How?", 'How, "so"?', 1),
    (1, 0, 13, "How?", "two\nlines", 0),
    (2, 14, 13, "Who?", "two\nlines", 0),
]


def write(path, text):
    path.write_text(text)
    return str(path)


def read(folder, body, **settings):
    path = write(folder / "pairs.tsv", "\t".join(HEADER) + "\n" + body)
    return read_question_pairs(path, **settings)


def test_every_format_has_the_same_pairs(tmp_path):
    for name in ("p.csv", "p.jsonl", "p.tsv"):
        write_table(tmp_path / name, HEADER, ROWS)
    (tmp_path / "p.tsv").rename(tmp_path / "pairs")  # a name that says nothing
    table = pyarrow.Table.from_pylist([dict(zip(HEADER, row, strict=True)) for row in ROWS])
    (tmp_path / "parts").mkdir()
    for part in range(2):
        pyarrow.parquet.write_table(
            table.slice(2 * part, 2), tmp_path / "parts" / f"{part}.parquet"
        )
    for name in ("p.csv", "p.jsonl", "pairs", "parts"):
        path = tmp_path / name
        found = read_question_pairs(path)
        assert found.questions == ["How?", 'How, "so"?', "two\nlines", "Who?"], name
        assert (found.ids.tolist(), found.ids.dtype) == ([0, 12, 13, 14], np.int64)
        assert (found.pairs.tolist(), found.pairs.dtype) == ([[0, 1], [0, 2], [3, 2]], np.int32)
        assert found.is_duplicate.tolist() == [True, False, False]
        assert found.report == {"rows": 3} | dict.fromkeys(
            ["skipped_rows", "same_text_ids", "changed_texts", "blank_pairs", "self_pairs"], 0
        )
        assert found.weights is None


def test_without_whole_numbers_questions_are_numbered_by_their_text(tmp_path, caplog):
    caplog.set_level("WARNING", logger="qpr_jax")
    path = write_table(tmp_path / "pairs.csv", HEADER[3:], [row[3:] for row in ROWS])
    found = read_question_pairs(path)
    assert found.ids.tolist() == [0, 1, 2, 3]
    assert not caplog.messages
    rows = [("u1", "u2", "a", "b", True), ("u3", "u1", "a", "a", "1.0"), ("u4", "7", "x", None, 0)]
    found = read_question_pairs(write_table(tmp_path / "pairs.jsonl", PAIRS_HEADER, rows))
    assert found.questions == ["a", "b", "x"]
    assert found.ids.tolist() == [0, 1, 3]
    assert found.is_duplicate.tolist() == [True]  # left out: one with itself, one with a blank
    assert "not all ids are whole numbers; questions are numbered from 0" in caplog.messages[0]
    write_table(path, PAIRS_HEADER, [(1, "", "a", "b", 1), ("", 2, "c", "d", 0)])
    assert read_question_pairs(path).questions == ["a", "b", "c", "d"]  # a blank id is none


def test_identity_of_questions(tmp_path, caplog):
    body = (
        "1\t1\t2\ta\tb\t1\n"
        "2\t3\t2\ta\tchanged\t1\n"  # 3 has the text of 1; 2 keeps its first text
        "3\t1\t3\ta\ta\t1\n"  # one question with itself
        "4\t4\t4\tc\tc\t0\n"
        "5\t2\t3\tchanged again\ta\t0\n"
        "6\t5\t3\tchanged\ta\t0\n"  # a text that was not kept is free
    )
    data = read(tmp_path, body)
    assert caplog.messages[0].endswith("ids with several texts, the first is kept: 1")
    assert data.questions == ["a", "b", "c", "changed"]
    assert data.ids.tolist() == [1, 2, 4, 5]
    assert data.pairs.tolist() == [[0, 1], [0, 1], [1, 0], [3, 0]]
    assert data.is_duplicate.tolist() == [True, True, False, False]
    counts = {"rows": 6, "skipped_rows": 0, "same_text_ids": 1, "changed_texts": 1}
    assert data.report == counts | {"blank_pairs": 0, "self_pairs": 2}
    blank = gather_pairs([(1, 2, "", "b", False), (3, 1, "c", "a", True)])
    assert blank.questions == ["a", "b", "c"]  # a blank text gives way to the first that is not
    rows = [("=a", "=", "a", "", True), ("= ", "=b", " ", "b", True), ("=a", "=b", "a", "b", True)]
    blank = gather_pairs(rows)  # what is left blank is no question, and joins no others
    assert (blank.questions, blank.pairs.tolist()) == (["a", "b"], [[0, 1]])
    assert (blank.report["blank_pairs"], blank.report["self_pairs"]) == (2, 0)
    assert gather_pairs([]).pairs.shape == (0, 2)


BAD = [
    ("1\t1\t2\ta\tb\t2", "expected `is_duplicate` 0 or 1, got '2'"),
    ("1\t1\t2\ta\tb\t", "expected `is_duplicate` 0 or 1, got ''"),
    ('1\t1\t2\ta\tb\t"1', "expected `is_duplicate` 0 or 1"),
]


def test_a_bad_row(tmp_path, caplog):
    for row, message in BAD:
        two_lines = '8\t13\t14\t"one\ntwo"\tthree\t1\n'
        text = "\t".join(HEADER) + f"\n{two_lines}{row}\n{GOOD}"
        path = write(tmp_path / "pairs.tsv", text)
        with pytest.raises(UserError, match=rf"pairs.tsv, line 4: {message}.*`skip_bad_rows=True`"):
            read_question_pairs(path)
        caplog.clear()
        data = read_question_pairs(path, skip_bad_rows=True)
        assert data.questions == ["one\ntwo", "three", "How?", "How so?"]
        assert (data.report["rows"], data.report["skipped_rows"]) == (2, 1)
        assert caplog.messages[0].startswith(f"{path}: 1 bad row left out; line 4: {message[:12]}")


def test_max_rows(tmp_path):
    body = GOOD + "bad\n" + "2\t13\t14\ta\tb\t0\n" + "bad\n"
    assert len(read(tmp_path, body, max_rows=1).pairs) == 1
    data = read(tmp_path, body, max_rows=2, skip_bad_rows=True)
    assert (data.report["rows"], data.report["skipped_rows"]) == (2, 1)
    check_refused(lambda most: read(tmp_path, body, max_rows=most), (2, "line 3"))


NUMBER = '{"question1": 1, "question2": "b", "is_duplicate": 1}\n'
WRONG = [
    (
        "a.csv",
        "question1,question2\na,b\n",
        "expected a column `is_duplicate`, got `question1`, `qu",
    ),
    ("a.csv", "question1,question2,is_duplicate\n", "got no good row and 0 bad ones"),
    ("a.jsonl", '{"question1": "a"}\n', "line 1: expected `question2`, got"),
    ("a.jsonl", NUMBER, "line 1: expected a question in `question1`, got 1"),
    ("a.txt", "one\ntwo\n", "expected a column `question1`, got `one`; name its columns so"),
]


def test_what_is_no_file_of_pairs(tmp_path):
    check_refused(lambda name, text: read_question_pairs(write(tmp_path / name, text)), *WRONG)
    with pytest.raises(UserError, match="does not exist"):
        read_question_pairs(tmp_path / "none.tsv")


LABELS = "question1,question2,is_duplicate,score,weight\n"


def test_weights_of_labels_are_optional_and_above_0(tmp_path):
    path = write(tmp_path / "v.csv", f"{LABELS}a,b,1,0.75,2\nb,c,0,0.25,\n")
    found = read_question_pairs(path, weighted=True)
    assert found.questions == ["a", "b", "c"]
    assert found.pairs.tolist() == [[0, 1], [1, 2]]
    assert found.is_duplicate.tolist() == [True, False]
    assert found.weights.tolist() == [2, 1]
    lines = '{"question1": "a", "question2": "b", "is_duplicate": 1}\n'
    found = read_question_pairs(write(tmp_path / "v.jsonl", lines), weighted=True)
    assert found.weights is None
    numbers = "line 2: expected a `weight` above 0, got"
    check_refused(
        lambda text: read_question_pairs(write(tmp_path / "v.csv", text), weighted=True),
        (f"{LABELS}a,b,1,0.5,0", numbers),
        (f"{LABELS}a,b,1,0.5,x", numbers),
    )
