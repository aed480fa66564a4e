"""All formats, compressions and inputs give the same rows; errors name file and line."""

import csv
import gzip
import io
import json
import pathlib
import re
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qpr_jax.data.columns import read_rows, write_tsv
from qpr_jax.data.decoding import FORMATS, table_files
from qpr_jax.data.entries import Entry
from qpr_jax.data.tables import read_table
from qpr_jax.errors import UserError
from tests.refused import check_refused

NAMES = ["id", "question", "n"]
ROWS = [
    (7, "how? why", "1"),
    ("x", 'é, \\n; "so"', "2"),
    (2**63 - 1, "two\nlines and a\ttab", "3"),
    ("last", "x" * 100_000, "4"),
]
EXPECTED = [Entry(0, row[0], row[1], {"n": row[2]}) for row in ROWS]


def write(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape"))
    return str(path)


def read(path, **how):
    return [*read_table(path, **how)]


def texts(path, **how):
    return [entry.question for entry in read(path, **how)]


def as_csv(rows, **how):
    text = io.StringIO(newline="")
    csv.writer(text, **how).writerows([NAMES, *rows])
    return text.getvalue().encode()


def as_tsv(rows):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "a.tsv")
        write_tsv(path, NAMES, rows)
        return path.read_bytes()


def as_json(rows, lines):
    records = [dict(zip(NAMES, row, strict=True)) for row in rows]
    return ("\n".join(map(json.dumps, records)) if lines else json.dumps(records)).encode()


def as_arrow(rows, kind):
    columns = [[row[i] for row in rows] for i in range(3)]
    table = pa.table([[str(i) for i in columns[0]], *columns[1:]], names=NAMES)
    buffer = io.BytesIO()
    if kind == "parquet":
        pyarrow.parquet.write_table(table, buffer)
    else:
        make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with make(buffer, table.schema) as writer:
            writer.write_table(table)
    return buffer.getvalue()


QUOTED = {"delimiter": ";", "lineterminator": "\n", "quoting": csv.QUOTE_ALL}
FILES = {
    "a.tsv": as_tsv,
    "a.TSV": lambda rows: as_csv(rows, delimiter="\t"),
    "a.csv": lambda rows: b"\xef\xbb\xbf" + as_csv(rows),
    "semicolons.csv": lambda rows: as_csv(rows, **QUOTED),
    "utf16.csv": lambda rows: as_csv(rows).decode().encode("utf-16"),
    "utf16_without_mark.csv": lambda rows: as_csv(rows).decode().encode("utf-16-le"),
    "sep.csv": lambda rows: b"sep=;\r\n" + as_csv(rows, **QUOTED),
    "a.jsonl": lambda rows: as_json(rows, True),
    "a.ndjson": lambda rows: as_json(rows, True),
    "a.json": lambda rows: as_json(rows, False),
    "lines.json": lambda rows: as_json(rows, True),
    "array.jsonl": lambda rows: as_json(rows, False),
    "utf16.json": lambda rows: as_json(rows, False).decode().encode("utf-16"),
    "utf32.csv": lambda rows: as_csv(rows).decode().encode("utf-32"),
    "a.parquet": lambda rows: as_arrow(rows, "parquet"),
    "a.arrow": lambda rows: as_arrow(rows, "file"),
    "a.arrows": lambda rows: as_arrow(rows, "stream"),
}
PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


def same(entries, *, ids=True):
    """The entries without their lines; Arrow columns of one type make all ids text."""
    return [(str(entry.id) if not ids else entry.id, *entry[2:]) for entry in entries]


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_rows(tmp_path, monkeypatch, name):
    """From a file, of a name that says its format or not, and from standard input."""
    typed = not name.startswith(("a.parquet", "a.arrow"))
    expected = same(EXPECTED, ids=typed)
    kind = {"a.ndjson": "jsonl", "a.arrows": "arrow"}.get(name, name.lower().split(".")[1])
    for packed, pack in PACK.items():
        data = pack(FILES[name](ROWS))
        assert same(read(write(tmp_path, name + packed, data)), ids=typed) == expected
        assert same(read(write(tmp_path, "unnamed", data), format=kind), ids=typed) == expected
        stdin = io.BufferedReader(io.BytesIO(data))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        assert same(read("-", format=kind), ids=typed) == expected


ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LINES = st.lists(st.sampled_from(["5,a,b", '5;"a";b', '"', "a b"]), min_size=1, max_size=3)
TEXTS = ANY.filter(str.strip) | LINES.map("\n".join)


@settings(max_examples=60)
@example([(1, "a", "b\n5,a,b")])
@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), TEXTS, TEXTS), max_size=20))
def test_any_text_is_read_back(tmp_path_factory, rows):
    """Also where the lines of a quoted cell look like rows."""
    folder = tmp_path_factory.mktemp("any")
    for name in ("a.tsv", "a.TSV", "a.csv", "semicolons.csv", "a.jsonl", "a.json"):
        if rows or name != "a.jsonl":
            found = read(write(folder, name, FILES[name](rows)))
            assert [(e.id, e.question, e.payload["n"]) for e in found] == rows, name
    assert csv.field_size_limit() == 131_072  # a global of Python, which others read


@settings(max_examples=50)
@example(['"', '"\t'], "tsv")
@given(
    st.lists(st.text('ab",;\t\r é\x00', max_size=12), max_size=12),
    st.sampled_from(["tsv", "csv", "lines"]),
)
def test_no_line_is_lost(tmp_path_factory, lines, kind):
    """Each line that is not blank is a row, or a reason; quotes that do not fit join no lines."""
    lines = [line.strip("\r") for line in lines]
    path = write(tmp_path_factory.mktemp("any"), "a", "question\tn\n" + "\n".join(lines))
    rows = list(read_rows(path, lambda names: names, format=kind))
    found = [str([*row.values()] if isinstance(row, dict) else row) for _, row in rows]
    numbers = [number for number, _ in rows]
    assert numbers == sorted({*numbers})
    blank = re.compile(r'(\s|"[ \t]*")*')  # quoted cells of blanks, too
    missing = {i for i, line in enumerate(lines, 2) if not blank.fullmatch(line)}
    for number in missing - {*numbers}:  # part of a quoted cell of a row above
        assert kind != "lines"
        assert any('"' in text or "\\n" in text for text in found), number


@settings(max_examples=30)
@given(st.lists(st.text("ab 5?", min_size=1).filter(str.strip), min_size=3), st.data())
def test_a_lone_quote_costs_its_own_row(tmp_path_factory, texts, data):
    at = data.draw(st.integers(0, len(texts) - 1))
    rows = [f'{i},{chr(34) * (i == at)}{text}a,"1"' for i, text in enumerate(texts)]
    path = write(tmp_path_factory.mktemp("any"), "a.csv", "\n".join(["id,question,n", *rows]))
    with pytest.raises(UserError, match=rf"a\.csv, line {at + 2}: not CSV .*`skip_bad_rows=True`"):
        read(path)
    found = [entry.id for entry in read(path, skip_bad_rows=True)]
    assert found == [i for i in range(len(texts)) if i != at]


def test_many_rows_in_one_quoted_cell_are_told(tmp_path, caplog):
    lines = [f"{i},message {i}" for i in range(200)]
    lines[50], lines[150] = '50,"not working', '150,still broken"'
    path = write(tmp_path, "a.csv", "\n".join(["id,question", *lines]))
    assert [entry.id for entry in read(path)] == [*range(51), *range(151, 200)]
    assert "line 53: quoted cells hold lines that look like rows: 100;" in caplog.messages[0]


def test_plain_lines(tmp_path):
    path = write(tmp_path, "q.txt", "\ufeffwhat?\r\n\n  \n{}\n\u2028 a\tb \nlast")
    assert [entry[:3] for entry in read_table(path)] == [
        (1, None, "what?"),
        (4, None, "{}"),
        (5, None, "\u2028 a\tb "),
        (6, None, "last"),
    ]
    assert read(write(tmp_path, "empty", "")) == []
    for columns in ({"text": "title"}, {"id": "id"}, {"payload": ["a"]}):
        with pytest.raises(UserError, match="expected a table with these columns, got lines"):
            read(path, **columns)
    for line in ("Text, or a title?", "query", "which title, id or text is the best"):
        assert texts(write(tmp_path, "q.txt", line)) == [line]


ODD = [
    ("mac.csv", 'id,question\r1,"a, b"\r2,c', ["a, b", "c"]),
    ("bom.txt", "a?\nb?\n".encode("utf-16"), ["a?", "b?"]),
    ("blank.csv", "\n\nid;question\n1;a, b\n", ["a, b"]),
    ("sep.csv", "sep=|\nid|question\n1|a, b\n", ["a, b"]),
    ("odd.csv", 'sep=^\nid^question\n1^"a^ b"\n', ["a^ b"]),
    ("comma.csv", "id;question;n (a, b, c, d)\n1;a;x\n2;b, c;y\n", ["a", "b, c"]),
    ("excel.csv", "id,question\n1,a\n,\n , \n", ["a"]),
    ("padded.csv", "id;question\n1;a;;\n2;b\n", ["a", "b"]),
    ("pipes.csv", "id|question\n1|a, b\n", ["a, b"]),
    ("joined.csv", "id,question\n1,a\nid,question\n2,b\n", ["a", "b"]),
    ("a.tsv", 'id\tquestion\n1\t"Hi, who\n2\tb\n3\t12"\n', ['"Hi, who', "b", '12"']),
    ("b.tsv", 'id\tquestion\n4\t"a\nb"\n5\t"a"b\n6\t""a\n', ["a\nb", '"a"b', '""a']),
    ("a.zst", b"\x50\x2a\x4d\x18\4\0\0\0skip" + PACK[".zst"](b"a\n"), ["a"]),
]


def test_odd_files_are_read_as_they_are_meant(tmp_path):
    for name, data, expected in ODD:
        assert texts(write(tmp_path, name, data)) == expected, name
    path = write(tmp_path, "twice.csv", "question,note,note\na,b,c\n")
    assert texts(path, payload=False) == ["a"]  # only what is read must have one name


def test_numbers_that_are_no_ids_are_strings(tmp_path):
    def ids(name, data):
        return [entry.id for entry in read(write(tmp_path, name, data))]

    found = ids("a.csv", "id,question\n18446744073709551615,a\n-5,b\n007,c\n7,d\n,e\n \t,f\n")
    assert found == ["18446744073709551615", "-5", "007", 7, None, None]
    lines = ['{"id": 9223372036854775808, "question": "a"}', '{"id": -1, "question": "b"}']
    lines += ['{"id": 7.0, "question": "a"}', '{"id": " ", "question": "b"}']
    assert ids("a.jsonl", "\n".join(lines)) == ["9223372036854775808", "-1", 7, None]


WRONG = [
    ("a.tsv", "", "a.tsv: expected a header that names the columns, got nothing"),
    ("a.tsv", "id\tasked\n", r"expected a column of questions .*, got `id`, `asked`; name the qu"),
    ("a.tsv", "id\tquestion\tquestion\n", "expected one column `question`, got 2; rename some"),
    ("a.tsv", "text\ttitle\n", "expected one column of the question, got `text`, `title`; na"),
    ("a.tsv", "text\tqid\t_id\n", "expected one column of the id, got `qid`, `_id`; name the id's"),
    ("a.tsv", "id\tquestion\n7\n", "line 2: expected 2 fields, as the header, got 1 in .*; corr"),
    ("a.tsv", f"id\tquestion\n{'é' * 513}\ty\n", "line 2: `ids`: .* 1,024 bytes, got 'é"),
    ("a.tsv", "question\tn\n \t1\n", "line 2: expected a question in `question`, got ' '"),
    ("a.csv", "id,question\n7,a,b\n8,c\n", "line 2: expected 2 fields, as the header, got 3 in"),
    ("a.csv", 'question\n"a\n', r"line 2: not CSV \(a quote is not closed\)"),
    ("a.csv", 'question\n"a"b\n', "line 2: not CSV"),
    ("a.csv", "hello\nwho?\n", "expected a column of .* or another format, such as `lines`"),
    ("a.json", "{", "line 1: expected a JSON object"),
    ("a.json", "[", r"expected an array of JSON objects \("),
    ("a.jsonl", "{}\n", r"line 1: expected a column of questions .* got none"),
    ("a.jsonl", "[1]\n", "line 1: expected a JSON object, got 1"),
    ("a.jsonl", "[" * 100_000 + "\n", r"expected an array of JSON objects \("),
    ("a.jsonl", '{"a":' * 100_000 + "\n", "line 1: expected a JSON object"),
    ("a.jsonl", '{"question": 1}\n', "line 1: expected a question in `question`, got 1"),
    ("a.jsonl", '{"question": "a", "id": 1.5}\n', "line 1: `ids`: expected .* 1.5 in `id`"),
    ("a.xlsx", "PK", "a spreadsheet or another format; decompress it, or export it as CSV"),
    ("a.pdf", "%PDF-1.7", "a spreadsheet or another format; decompress it, or export it as CSV"),
    ("a.csv", "PAR1", "expected text, got Parquet; name its format with `format=.parquet.`"),
    ("gen.py", "import os\n", r"expected a table or lines of text, got source code \(.py\); name"),
    ("a.SQL.gz", "x\n", r"\(.sql\); name a table \(.tsv, .*\), or its format with `format`, lines"),
    ("a.txt", "id,question\n", "expected lines of text, got what looks like csv; name"),
    ("a.txt", "Ticket\tCustomer question\n", "expected lines of text, got what looks like tsv"),
    ("a.txt", '{"question": "a"}\n', "expected lines of text, got what looks like jsonl"),
    ("a.txt", b"a\n\xff\xff\xff\xfe\x81\n", "line 2: expected UTF-8; it may be .*; correct it"),
    ("a.csv", b"\xff\xfeq\0u", "expected UTF-16 .*; save the file as UTF-8"),
    ("a.gz", gzip.compress(b"a\n" * 9999, mtime=0)[:-9], r"cannot be read \(Compressed file ended"),
    ("a.parquet", "PAR1 nothing", "expected Parquet"),
]  # fmt: skip


def test_errors_name_the_file_and_the_line(tmp_path):
    for name, data, message in WRONG:
        path = write(tmp_path, name, data)
        check_refused(read, (path, re.escape(path)), (path, message))


def test_what_cannot_be_opened(tmp_path):
    check_refused(
        read,
        (str(tmp_path / "nowhere"), "nowhere: does not exist; name a file"),
        ("https://example.com/q.csv", "cannot be read .*; download it, and name the file"),
        (str(tmp_path), r"cannot be read \(Is a directory\); name a file"),
    )
    with pytest.raises(UserError, match="`format`: expected one of lines, tsv, csv, jsonl"):
        read(write(tmp_path, "a", "a"), format="xml")
    assert {name.lower().rpartition(".")[2] for name in FILES} >= {*FORMATS[1:]}


def test_bad_rows_may_be_left_out_and_are_counted(tmp_path, caplog):
    path = write(tmp_path, "a.tsv", b"id\tquestion\n1\ta\nx\t \n2\t\n\xff\t\n3\n4\tc\n")
    assert read(path, skip_bad_rows=True) == [Entry(2, 1, "a"), Entry(7, 4, "c")]
    said = "4 bad rows left out; line 3: expected a question in `question`, got ' '"
    assert caplog.messages == [f"{path}: {said}"]
    path = write(tmp_path, "b.tsv", b'id\tquestion\n1\t"a\n\x81\nb"\n2\tc\n')
    assert read(path, skip_bad_rows=True) == [Entry(5, 2, "c")]
    assert f"{path}: 1 bad row left out; line 2: expected UTF-8; it may be" in caplog.messages[1]


def test_the_first_row_of_json_says_which_key_is_the_question(tmp_path, caplog):
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
    assert read(path, id=None, payload=["url", "n"], skip_bad_rows=True) == [
        Entry(1, None, "a", {"url": "u", "n": 1}),
        Entry(2, None, "b", {"n": None}),
        Entry(5, None, "d"),
    ]
    caplog.clear()
    path = write(tmp_path, "b.jsonl", '{"question": "a"}\n')
    assert read(path, payload=["url"]) == [Entry(1, None, "a")]
    assert caplog.messages == [f"{path}: no row has `url`"]


def test_the_tables_of_a_folder(tmp_path):
    names = ("b.jsonl", "c.parquet", "d.tsv.zst", "deep/a.csv.gz")
    (tmp_path / "empty").mkdir()
    for name in (*names[::-1], "README.md", "._b.jsonl", ".ipynb_checkpoints/b.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert table_files([tmp_path]) == tuple(str(tmp_path / name) for name in names)
    assert table_files([tmp_path], format="csv") == (f"{tmp_path}/deep/a.csv.gz",)
    for name in ("b_duplicates/info.json", "my_index/index/manifest.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text('{"files": ["pairs.csv"]}')
        (tmp_path / name).with_name("pairs.csv").touch()
    assert table_files([tmp_path]) == tuple(str(tmp_path / name) for name in names)
    empty = str(tmp_path / "empty")
    nothing = "expected a folder with tables"
    (tmp_path / "notes").mkdir()
    for name in ("a.txt", "b.txt.gz", "c.md"):
        (tmp_path / "notes" / name).touch()
    lines = tuple(f"{tmp_path}/notes/{name}" for name in ("a.txt", "b.txt.gz"))
    assert table_files([tmp_path / "notes"]) == lines
    check_refused(table_files, ([empty], nothing), ([""], "got an empty name"))
    for name in ("part-0", "_SUCCESS"):
        (tmp_path / "empty" / name).touch()
    assert table_files([empty], format="jsonl") == (f"{empty}/part-0",)
