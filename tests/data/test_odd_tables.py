"""Tables of other programs: lone quotes, rare separators, encodings, types, shapes of JSON."""

import datetime
import json
import math

import polars
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qpr_jax.data.tables import as_table, read_table
from qpr_jax.errors import UserError
from tests.data.test_tables import read, texts, write
from tests.refused import check_refused

ROWS = [{"id": 11, "question": "a b"}, {"id": 12, "question": "c"}]
LONE = "quoted cells hold lines that look like rows"


@settings(max_examples=60)
@example(1, ["a", "b", "c"], 0, 1, 1)
@given(
    st.integers(1, 3),
    st.lists(st.text("ab, ?", min_size=1, max_size=9).filter(str.strip), min_size=2, max_size=9),
    st.integers(0, 8),
    st.integers(1, 8),
    st.integers(0, 1),
)
def test_rows_that_lone_quotes_join_are_told(tmp_path_factory, width, rows, first, count, blank):
    """Of any number of columns, also with a comma in a text between, or a blank line."""
    first %= len(rows) - 1
    last = min(first + count, len(rows) - 1)
    cells = [text.replace(",", " " if width > 1 and n in (first, last) else ",") for n, text in
             enumerate(rows)]  # fmt: skip
    cells[first], cells[last] = f'"{cells[first].strip()}', f'{cells[last].strip()}"'
    before = [f"{n}," * (width > 1) + "x," * (width > 2) for n in range(len(rows))]
    lines = [start + cell for start, cell in zip(before, cells, strict=True)]
    lines[last:last] = [""] * blank
    header = ",".join(["id", "team", "question"][:: 2 if width == 2 else 1][-width:])
    path = write(tmp_path_factory.mktemp("any"), "a.csv", "\n".join([header, *lines]))
    with pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("qpr_jax.data.separated.log.warning", lambda text, *a: said.append(text % a))
        found = read(path, skip_bad_rows=True)
    assert len(found) < len(rows)
    assert f"{path}, line {first + 3}: {LONE}" in said[0]


def test_texts_of_several_lines_are_no_lone_quotes(tmp_path, caplog):
    caplog.set_level("WARNING", logger="qpr_jax")
    cells = ['7,"Hi,\nthanks, bob"', '8,"a, b\nc"', '9,"x\n\n1\n2"', '6,"see\nno\n8, ok"']
    for header in ("id,question", "id,question,n"):
        lines = [cell + ",1" * header.endswith(",n") for cell in cells]
        assert len(read(write(tmp_path, "a.csv", "\n".join([header, *lines])))) == 4
    assert caplog.messages == []


DIALECTS = [
    ('id,question\n1,"a \\"b\\", c"\n2,"d"\n', ['a "b", c', "d"]),
    ('id,question,n\n1,"ends \\"so\\"",x\n2,"b",y\n3,"c\\"",z\n', ['ends "so"', "b", 'c"']),
    ('id,question\n2,"a\nb \\"c\\"\nd"\n3,"z"\n', ['a\nb "c"\nd', "z"]),
    ('id,question\n1,"a \\"b\\" C:\\\\"\n2,"d"\n', ['a "b" C:\\', "d"]),
    ('id,question\n1,"C:\\"\n2,"a ""b"" \\"\n', ["C:\\", 'a "b" \\']),
    ('id, question\n1, "a, b"\n2, c\n3,  "d ""e"""\n', ["a, b", " c", 'd "e"']),
    ('id,question\n1, "so" he said\n2,"b" \n', [' "so" he said', "b"]),
    ("id,question\r\r\n1,a\r\r\n2,b\r\r\n", ["a", "b"]),
    ("\ufeff\ufeffid,question\n1,a\n", ["a"]),
    ('\ufeff"id","question"\n1,a\n\ufeff"id","question"\n2,b\n', ["a", "b"]),
]


def test_dialects_of_csv(tmp_path):
    for data, expected in DIALECTS:
        assert texts(write(tmp_path, "a.csv", data)) == expected, data


@pytest.mark.parametrize("separator", ["\x01", "\x1f", "^", "~", "||", "::", "|", "§", "#", "/"])
def test_separators_that_nobody_expects(tmp_path, separator):
    rows = [["id", "question", "team"], ["1", "a, b", "x"], ["2", "c; d", ""]]
    path = write(tmp_path, "a.csv", "\n".join(map(separator.join, rows)))
    assert [(e.id, e.question) for e in read(path)] == [(1, "a, b"), (2, "c; d")]


def test_separators_in_doubt_are_named(tmp_path):
    path = write(tmp_path, "a.csv", "id^question\n1^a\n2^b^c\n")
    check_refused(read, (path, r"a.csv: expected a comma, .* '\^' may be there; .*`sep=\^`"))
    path = write(tmp_path, "a.csv", "id question\n1 who are you\n2 who am I\n")
    check_refused(read, (path, "a.csv: expected a comma, .* ' ' may be there"))
    path = write(tmp_path, "b.csv", "sep=^\nid^question\n1^a\n2^b^\n")
    assert texts(path) == ["a", "b"]
    for header in ("question", "Customer question:", "the question (en)", "text/question"):
        assert texts(write(tmp_path, "a.csv", f"{header}\na: b\nc/d: e\n")) == ["a: b", "c/d: e"]


ENCODED = {
    "cp1252": "Où est-ce?",
    "cp1250": "Żółta gęś, źle?",
    "iso8859_2": "Żółta gęś, źle?",
    "koi8_r": "Как сбросить пароль?",
    "cp1251": "где мой заказ",
    "shift_jis": "パスワード?",
    "gb18030": "如何重置密码",
    "euc_kr": "비밀번호를 잊었어요",
    "cp1253": "Πού είναι",
    "cp1255": "איפה ההזמנה",
    "mac_roman": "naïve café?",
}


@pytest.mark.parametrize("encoding", ENCODED)
def test_what_is_not_utf8_is_shown_in_the_encodings_that_it_may_have(tmp_path, encoding):
    """The error lists candidates and recommends none."""
    text = ENCODED[encoding]
    path = write(tmp_path, "a.csv", f"id,question\n1,{text}\n".encode(encoding))
    with pytest.raises(UserError, match=r"line 2: expected UTF-8; it may be .*-f ENCODING") as said:
        read(path)
    assert f"('{text.split(',')[0][:10]}" in str(said.value)


def test_one_bad_line_of_utf8_is_told(tmp_path):
    data = "id,question\n1,如何\n".encode() + b"2,caf\xe9\n"
    message = r"line 3: expected UTF-8, as the rest of the file is, got \\xe9 in '2,caf"
    check_refused(read, (write(tmp_path, "a.csv", data), message))
    data = "question\n如何重".encode() + b"\xff\n"
    check_refused(read, (write(tmp_path, "a.csv", data), r"line 2: .* rest of the file is.*\\xff"))


def test_cells_with_blanks_that_nobody_sees(tmp_path):
    path = write(tmp_path, "a.csv", '\ufeffid \u200b,\xa0question\n\xa07\t,a\n"8 \r",b\n')
    assert [entry.id for entry in read(path)] == [7, 8]
    path = write(tmp_path, "b.jsonl", '{"id": " x\\t", "question": "a"}\n')
    assert [entry.id for entry in read(path)] == ["x"]


def test_an_index_without_a_name_is_kept(tmp_path):
    entries = read(write(tmp_path, "a.csv", ",question\n11,a\n12,b\n"))
    assert [(e.id, e.payload) for e in entries] == [
        (None, {"index": "11"}),
        (None, {"index": "12"}),
    ]


def test_bad_ids_are_bad_rows(tmp_path, caplog):
    path = write(tmp_path, "a.csv", "id,question\n,a\n1,b\n1,c\n,d\n2,e\n")
    assert [entry.id for entry in read(path, skip_bad_rows=True)] == [1, 2]
    assert "3 bad rows left out; line 2: expected an id, as other rows have" in caplog.messages[-1]
    path = write(tmp_path, "b.csv", "id,question\n,a\n,b\n")
    assert texts(path, skip_bad_rows=True) == ["a", "b"]


COLUMNS = {"id": {"0": 11, "1": 12}, "question": {"0": "a b", "1": "c"}}
SHAPES = [
    ROWS,
    [*map(json.dumps, ROWS)],
    COLUMNS,
    {"id": [11, 12], "question": ["a b", "c"]},
    {str(row["id"]): {"question": row["question"]} for row in ROWS},
    {"columns": ["id", "question"], "index": [0, 1], "data": [[11, "a b"], [12, "c"]]},
    {"columns": ["question"], "index": [11, 12], "data": [["a b"], ["c"]]},
    {"schema": {"fields": [{"name": "id"}]}, "data": ROWS},
    {"title": "all", "status": 200, "data": ROWS},
    {"response": {"items": ROWS}},
]


@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_shapes_of_json(tmp_path, shape, indent, name):
    path = write(tmp_path, name, json.dumps(SHAPES[shape], indent=indent))
    assert [(str(e.id), e.question) for e in read(path)] == [("11", "a b"), ("12", "c")]


def test_other_json(tmp_path):
    line = '{"question": "a", "answers": [{"text": "b"}, {"text": "c"}]}'
    assert texts(write(tmp_path, "a.json", line)) == ["a"]
    assert texts(write(tmp_path, "a.json", f"[{line}]\n[{line}]\n")) == ["a", "a"]
    assert texts(write(tmp_path, "a.json", '["a", "b"]')) == ["a", "b"]
    rows = json.dumps(ROWS)
    wrong = [
        (f'{{"train": {rows}, "test": {rows}}}', "a.json: expected one array of rows, got `train`"),
        ('{"x": {"y": 1}, "z": {"y": 2}}', "a.json: expected rows, got objects in an object"),
        ("[1, 2]\n[3, 4]", "line 1: expected a JSON object, got .1, 2."),
        ("[[1, 2]]", "line 1: expected a JSON object, got .1, 2."),
    ]
    for data, message in wrong:
        check_refused(read, (write(tmp_path, "a.json", data), message))


def far_times():
    seconds = [253402300799, 253402300800 + 86400 * 400, -62135596801, 0]
    return {
        "at": pa.array(seconds, pa.timestamp("s", "Asia/Tokyo")),
        "day": pa.array([10**7, -(10**6), 0, 1], pa.date32()),
    }


def test_times_that_python_lacks_are_text(tmp_path):
    table = pa.table({"question": ["a", "b", "c", "d"]} | far_times())
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    frame = polars.from_arrow(table)
    for entries in (read(str(tmp_path / "a.parquet")), as_table(table).entries, as_table(frame)):
        payloads = [entry.payload for entry in entries]
        assert payloads[0]["day"] == "29349-01-26"
        assert payloads[1]["at"].startswith("10001-02-0")
        assert payloads[3] == {"at": "1970-01-01T09:00:00+09:00", "day": "1970-01-02"}


def test_infinity_is_text(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"question": "a", "n": [NaN, -Infinity, 1]}\n')
    assert read(path)[0].payload == {"n": ["NaN", "-Infinity", 1]}
    rows = [{"question": "a", "n": math.inf, "m": math.nan}]
    assert as_table(rows).entries[0].payload == {"n": "Infinity", "m": None}


def test_views_of_arrow_keep_their_types(tmp_path):
    frame = polars.DataFrame({"question": ["a", "b"], "day": [datetime.date(2024, 1, 1)] * 2})
    frame.write_ipc(tmp_path / "a.arrow")
    table = read_table(str(tmp_path / "a.arrow"))
    assert table.texts == ["a", "b"]
    assert table.select([1], ["question", "day"]).to_native().to_pylist() == frame.to_dicts()[1:]
    table = as_table(pa.table(frame))
    assert table.texts == ["a", "b"]
    assert table.select([0], ["question"]).to_native().num_rows == 1


def test_errors_name_the_file_of_a_row(tmp_path):
    a = write(tmp_path, "a.csv", "id,question\n1,a\n2,b\n")
    b = write(tmp_path, "b.csv", "id,question\n3,c\n2,d\n")
    table = read_table([a, b])
    rows = [*table]
    assert table.place(3, rows[3].line) == f"{b}, line 3"
    assert str(table.repeated(2, 3, 3)).startswith(
        f"{b}, line 3: the id 2 occurs twice, first in {a}"
    )
