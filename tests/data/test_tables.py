import gzip
import io
import json
import os
import sys

import pyarrow.parquet
import pytest

from qpr_jax.data.columns import Columns
from qpr_jax.data.questions import Entry, read_questions
from qpr_jax.data.tables import read_rows
from qpr_jax.errors import UserError
from qpr_jax.ids import parse_id


def write(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


ALL = Columns(payload=True)


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
            '{"id": 9223372036854775807, "question": "x"}\n',
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
    assert read(path) == [Entry(2, 4, 'one\ntwo "2"'), Entry(4, 5, "three")]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tsv", "", "a.tsv: expected a header that names the columns, got nothing"),
        ("a.tsv", "id\tasked\n", r"expected a column of questions .*, got `id`, `asked`; name it"),
        ("a.tsv", "text\ttitle\n", "expected one column of the question, got `text`, `title`; na"),
        ("a.tsv", "text\tqid\t_id\n", "expected one column of the id, got `qid`, `_id`; name it"),
        (
            "a.tsv",
            "id\tquestion\n7\n",
            "line 2: expected 2 fields, as the header, got 1 in .*; correct",
        ),
        ("a.tsv", f"id\tquestion\n{'é' * 513}\ty\n", "line 2: `ids`: .* 1,024 bytes, got .* 1,026"),
        ("a.tsv", "question\n \n", "line 2: expected a question in `question`, got ' '"),
        ("a.csv", 'question\n"a\n', r"line 2: not CSV \(a quote is not closed\)"),
        ("a.csv", 'question\n"a"b\n', "line 2: not CSV"),
        ("a.jsonl", "{}\n", r"line 1: expected a column of questions .* got none"),
        ("a.jsonl", '{"question": "a", "id": -1}\n', "line 1: `ids`: expected 0 to .* got -1"),
        ("a.json", "{", "line 1: expected a JSON object"),
        ("a.json", "[", r"expected an array of JSON objects \("),
        ("a.json", "7", "expected an array of JSON objects, got 7"),
        ("a.xlsx", "PK", "got a spreadsheet; save it as CSV"),
        (
            "a.txt",
            "id,question\n",
            "expected lines of text, got what looks like csv; name",
        ),
        ("a.txt", '{"question": "a"}\n', "expected lines of text, got what looks like jsonl"),
        ("a.csv", "How do I log in?\nWho?\n", "expected a header with a column of questions"),
        ("a.jsonl", "[1]\n", r"line 1: expected a JSON object, got \[1\]"),
        ("a.jsonl", "{\n", "line 1: expected a JSON object"),
        ("a.jsonl", "[" * 100_000 + "\n", "line 1: expected a JSON object"),
        ("a.jsonl", '{"question": 1}\n', "line 1: expected a question in `question`, got 1"),
        ("a.jsonl", '{"question": "a", "id": 1.5}\n', "line 1: `ids`: expected .* 1.5 in `id`"),
        (
            "a.jsonl",
            '{"question": "a", "id": true}\n',
            "line 1: `ids`: expected .* True in `id`",
        ),
        ("a.txt", b"a\n\xff\n", "line 2: expected UTF-8; save the file as UTF-8"),
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
    path = write(tmp_path, "a.tsv", b"id\tquestion\n1\ta\nx\t \n2\t\n\xff\t\n3\n4\tc\n")
    assert read(path, skip_bad_rows=True) == [Entry(2, 1, "a"), Entry(7, 4, "c")]
    assert caplog.messages == [f"{path}: 4 bad rows left out"]


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"nowhere: cannot be read \(No such file"):
        read(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="expected a file, got a folder; name a file"):
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
    with pytest.raises(UserError, match=r"expected a column of questions .*, got `asked`, `a\.b`"):
        read(table(["asked", "a.b"], ["a"], ["b"]))
    assert read(table(["question", "a.b"], ["a"], ["b"]), columns=ALL)[0].payload == {"a.b": "b"}
    assert read(table(["asked"], ["a"])) == [Entry(1, None, "a")]
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


def test_the_first_row_of_json_says_which_key_is_the_question(tmp_path):
    rows = [
        '{"question": "a", "url": "u", "n": 1}',
        '{"question": "b", "n": null}',
        '{"category": "billing"}',
        '{"text": "c", "id": 4}',
        '{"question": "d", "id": "x"}',
    ]
    path = write(tmp_path, "a.jsonl", "\n".join(rows))
    with pytest.raises(UserError, match="line 3: expected a column `question`, got `category`"):
        read(path)
    assert read(path, columns=Columns(payload=("url", "n")), skip_bad_rows=True) == [
        Entry(1, None, "a", {"url": "u", "n": 1}),
        Entry(2, None, "b", {"n": None}),
        Entry(5, "x", "d"),
    ]


def test_a_key_that_no_row_has_is_named(tmp_path, caplog):
    caplog.set_level("WARNING", logger="qpr_jax")
    path = write(tmp_path, "a.jsonl", '{"question": "a"}\n')
    assert read(path, columns=Columns(payload=("url",))) == [Entry(1, None, "a")]
    assert caplog.messages == [f"{path}: no row has `url`"]


def test_rows_of_a_tsv_file_are_not_joined_by_quotes_that_are_characters(tmp_path):
    text = 'id\tquestion\n1\t"Hello, who said it\n2\tb\n3\tIs this a screen of 12"\n4\t"a\nb"\n'
    assert [entry[1:3] for entry in read(write(tmp_path, "a.tsv", text))] == [
        (1, '"Hello, who said it'),
        (2, "b"),
        (3, 'Is this a screen of 12"'),
        (4, "a\nb"),
    ]


@pytest.mark.parametrize("line", ["id,title", "Ticket;Text", '"id"\t"query"', "a,b,question1"])
def test_a_header_is_no_line_of_text(tmp_path, line):
    with pytest.raises(UserError, match="expected lines of text, got what looks like"):
        read(write(tmp_path, "a", f"{line}\n1,2\n"))
    assert len(read(write(tmp_path, "a", f"{line}\n1,2\n"), format="lines")) == 2


@pytest.mark.parametrize(
    "line", ["Text, or a title?", "query", "which title, id or text is the best"]
)
def test_a_question_is_no_header(tmp_path, line):
    assert len(read(write(tmp_path, "a", line))) == 1


def test_columns_of_lines_are_refused(tmp_path):
    path = write(tmp_path, "a", "what?\n")
    for columns in (Columns("title"), Columns(id="id"), Columns(payload=("a",))):
        with pytest.raises(UserError, match="expected a table with these columns, got lines"):
            read(path, columns=columns)


@pytest.mark.parametrize("header", ["hello", "how are you", "my lost cat"])
def test_one_column_needs_a_usual_word(tmp_path, header):
    with pytest.raises(UserError, match=f"column of questions, got `{header}`; .* read lines"):
        read(write(tmp_path, "a.csv", f"{header}\nwho?\n"))
    assert len(read(write(tmp_path, "a.csv", f"{header} text\nwho?\n"))) == 1
    assert len(read(write(tmp_path, "a.csv", f"{header}\nwho?\n"), columns=Columns(header))) == 1


@pytest.mark.parametrize("start", [b"\xfd7zXZ\0", b"BZh9", b"PK\x03\x04"])
def test_other_compression_is_named(tmp_path, start):
    with pytest.raises(UserError, match=r"expected text, .* got .*; decompress it"):
        read(write(tmp_path, "a.csv", start + b"..."))


@pytest.mark.parametrize("stream", [False, True])
def test_arrow_from_a_pipe_and_compressed(tmp_path, monkeypatch, stream):
    table = pyarrow.table({"question": ["a", "b"], "id": [1, 2]})
    buffer = io.BytesIO()
    make = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with make(buffer, table.schema) as writer:
        writer.write_table(table)
    expected = [Entry(1, 1, "a"), Entry(2, 2, "b")]
    data = buffer.getvalue()
    assert read(write(tmp_path, "a.arrow", data)) == expected
    packed = pyarrow.compress(data, "zstd", asbytes=True)
    assert read(write(tmp_path, "a.arrow.zst", packed)) == expected
    ends = os.pipe()
    os.write(ends[1], data)
    os.close(ends[1])
    with open(ends[0], encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert read("-", format="arrow") == expected
