import gzip
import io
import json
import sys

import pyarrow.parquet
import pytest

from qpr_jax.data.questions import Entry, read_questions
from qpr_jax.data.tables import read_rows
from qpr_jax.errors import UserError
from qpr_jax.ids import parse_id


def write(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def read(path, **how):
    return list(read_questions(path, **how))


EXPECTED = [Entry(2, 7, "how? why"), Entry(3, None, "é, \\n"), Entry(4, 2**63 - 1, "x")]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.tsv", "id\tquestion\n7\thow? why\n\té, \\n\n9223372036854775807\tx\n"),
        ("a.TSV", 'question\tmore\tid\r\nhow? why\t"\t7\r\né, \\n\t\t\r\nx\t\t9223372036854775807'),
        ("a.csv", '\ufeffid,question\n7,how? why\n,"é, \\n"\n9223372036854775807,"x"\n'),
        (
            "a.jsonl",
            '\n{"question": "how? why", "id": 7, "more": []}\n{"question": "é, \\\\n"}\n'
            '{"id": "9223372036854775807", "question": "x"}\n',
        ),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_formats(tmp_path, monkeypatch, name, data, zipped):
    data = gzip.compress(data.encode()) if zipped else data.encode()
    path = write(tmp_path, name + ".gz" if zipped else name, data)
    assert read(path) == EXPECTED
    # By a name that says nothing, and from standard input.
    kind = name.lower().removeprefix("a.")
    assert read(write(tmp_path, "unnamed", data), format=kind) == EXPECTED
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert read("-", format=kind) == EXPECTED


def test_plain_lines(tmp_path):
    path = write(tmp_path, "q.txt", "\ufeffwhat?\r\n\n  \n{}\n\u2028 a\tb \nlast")
    assert [(e.line, e.question) for e in read(path)] == [
        (1, "what?"),
        (4, "{}"),
        (5, "\u2028 a\tb "),
        (6, "last"),
    ]
    assert read(write(tmp_path, "empty", "")) == []


def test_a_cell_may_hold_lines_and_another_column_be_asked_for(tmp_path):
    path = write(tmp_path, "a.csv", 'text,id\n"one\ntwo ""2""",4\nthree,5\n')
    assert read(path, column="text") == [Entry(2, 4, 'one\ntwo "2"'), Entry(4, 5, "three")]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tsv", "", "a.tsv: expected a header with `question`, got nothing"),
        ("a.tsv", "id\ttext\n", r"expected a column `question`, got \['id', 'text'\]"),
        (
            "a.tsv",
            "id\tquestion\n7\n",
            "line 2: expected 2 fields, as the header, got 1; correct",
        ),
        ("a.tsv", "id\tquestion\nx\ty\n", "line 2: `id`: expected 0 to 92.*7, got 'x'"),
        ("a.tsv", "id\tquestion\n-1\ty\n", "line 2: `id`: expected .* got '-1'"),
        ("a.tsv", "id\tquestion\n9223372036854775808\ty\n", "line 2: `id`: expected"),
        ("a.tsv", "question\n \n", "line 2: expected a question in `question`, got ' '"),
        ("a.csv", 'question\n"a\n', r"line 2: not CSV \(a quote is not closed\)"),
        ("a.csv", 'question\n"a"b\n', "line 2: not CSV"),
        ("a.jsonl", "{}\n", r"line 1: expected the key `question`, got \[\]"),
        ("a.jsonl", "[1]\n", r"line 1: expected a JSON object, got \[1\]"),
        ("a.jsonl", "{\n", "line 1: expected a JSON object"),
        ("a.jsonl", "[" * 100_000 + "\n", "line 1: expected a JSON object"),
        ("a.jsonl", '{"question": 1}\n', "line 1: expected a question in `question`, got 1"),
        ("a.jsonl", '{"question": "a", "id": 1.5}\n', "line 1: `id`: expected .* got 1.5"),
        ("a.jsonl", '{"question": "a", "id": true}\n', "line 1: `id`: expected .* got True"),
        ("a.txt", b"a\n\xff\n", "line 2: expected UTF-8"),
        ("a.csv", b"question\na\n\xff\n", "line 3: expected UTF-8"),
        ("a.jsonl", b"\xff\xfe{\0}\0\n", "line 1: expected UTF-8"),
        ("a.gz", gzip.compress(b"a\n" * 9999, mtime=0)[:-9], "not whole gzip"),
        ("a.gz", b"\x1f\x8bnothing", "not whole gzip"),
    ],
)
def test_bad_rows_are_named(tmp_path, name, data, message):
    path = write(tmp_path, name, data)
    with pytest.raises(UserError, match=message) as error:
        read(path)
    assert path in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_rows_may_be_left_out(tmp_path, caplog):
    caplog.set_level("WARNING", logger="qpr_jax")
    path = write(tmp_path, "a.tsv", b"id\tquestion\n1\ta\nx\tb\n2\t\n\xff\t\n3\n4\tc\n")
    assert read(path, skip_bad_rows=True) == [Entry(2, 1, "a"), Entry(7, 4, "c")]
    assert caplog.messages == [f"{path}: 4 bad rows left out"]


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"nowhere: cannot be read \(No such file"):
        read(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory\)"):
        read(str(tmp_path))
    with pytest.raises(UserError, match="`format`: expected one of lines, tsv, csv, jsonl"):
        read(write(tmp_path, "a", "a"), format="xml")


def test_a_quote_left_open_is_refused_even_where_bad_rows_are_left_out(tmp_path):
    path = write(tmp_path, "a.csv", 'question\n"a\nb\nc\n')
    with pytest.raises(UserError, match="a quote is not closed"):
        read(path, skip_bad_rows=True)


def test_parquet(tmp_path):
    def table(names, *columns):
        path = tmp_path / "a.parquet"
        pyarrow.parquet.write_table(pyarrow.table(list(columns), names=names), path)
        return str(path)

    binary = pyarrow.array([b"one", b"\xff", b"three"], pyarrow.binary())
    broken = binary.view(pyarrow.string())
    path = table(["question", "id"], broken, [4, 5, 6])
    with pytest.raises(UserError, match="line 2: expected UTF-8"):
        read(path)
    assert read(path, skip_bad_rows=True) == [Entry(1, 4, "one"), Entry(3, 6, "three")]
    with pytest.raises(UserError, match="expected one column `question`, got 2"):
        read(table(["question", "question"], ["a"], ["b"]))
    with pytest.raises(UserError, match=r"expected a column `question`, got \['asked'\]; name"):
        read(table(["asked"], ["a"]))
    with pytest.raises(UserError, match="expected Parquet") as error:
        read(write(tmp_path, "b.parquet", "PAR1 nothing"))
    assert "\n" not in str(error.value)


def test_zstd_may_begin_with_a_frame_to_skip(tmp_path):
    frame = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
    path = write(tmp_path, "a.txt.zst", frame + pyarrow.compress(b"a\nb\n", "zstd", asbytes=True))
    assert [entry.question for entry in read(path)] == ["a", "b"]


def test_rows_of_other_columns(tmp_path):
    path = write(tmp_path, "a.jsonl", json.dumps({"a": 1, "b": 2}))
    assert list(read_rows(path, ["a", "b"])) == [(1, {"a": 1, "b": 2})]


@pytest.mark.parametrize("value", [True, -1, 1.0, 2**63, "", "1 1", "1_0", "٣", None, [], "9" * 20])
def test_no_ids(value):
    assert parse_id(value) is None
