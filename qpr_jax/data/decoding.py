"""Rows of files in any of FORMATS, plain or compressed by gzip or zstd, and of standard input."""

from __future__ import annotations

import codecs
import collections
import contextlib
import csv
import gzip
import io
import itertools
import json
import logging
import os
import re
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from qpr_jax.errors import UserError, needs, short, shortened

log = logging.getLogger("qpr_jax")

STANDARD_INPUT = "-"
FORMATS = ("lines", "tsv", "csv", "jsonl", "json", "parquet", "arrow")
ARROW = ("parquet", "arrow")  # formats whose columns have types
NOT_UTF8 = "expected UTF-8"
NO_JSON = (ValueError, RecursionError, MemoryError)  # what `parse_json` raises

_START = 1 << 16  # bytes that show the encoding and the line ends
_NO_TEXT = (b"PK", b"BZ", b"\xfd7", b"\xd0\xcf")  # zip, bzip2, xz, an old spreadsheet
_TYPED = {b"PAR1": "parquet", b"ARRO": "arrow"}
# Encodings of other programs, with the letters that show each; anything else passes for the last.
_ENCODINGS = {
    "SHIFT_JIS": "[\u3040-\u30ff]",
    "WINDOWS-1251": "[\u0400-\u04ff]{3}",
    "WINDOWS-1252": "",
}
_BEFORE_JSON = b"\xef\xbb\xbf\xff\xfe\0 \t\r\n"  # byte order marks and blanks
_LONGEST_ROW = 5000  # lines of a row whose cells hold line ends
_LONGEST_CELL = 1 << 30  # characters; the default of `csv` refuses long texts
_SHOWN_LINES = 20  # that show the separator of a CSV file
_OPEN = "not CSV (a quote is not closed)"
_CSV_LIMIT = threading.Lock()  # of cells, which all threads share

Fields = Mapping[str, object]
Rows = Iterator[tuple[int, Fields | str]]  # the line of a row; its fields, or what is wrong
# From the names of all columns to those that are read, none where they are a row of a text file
# without a header; of JSON all keys are read.
Choose = Callable[[Sequence[str]], Iterable[str]]
Line = tuple[int, str | bytes]  # its number from 1, and its text; bytes if it is not UTF-8
Cells = list[str] | str  # of a row, or what is wrong


def input_name(path: str) -> str:
    """Name of an input in messages."""
    return "standard input" if path == STANDARD_INPUT else path


def import_pyarrow(path: str) -> Any:
    """Import the package that reads Parquet, Arrow and zstd; UserError if it is missing."""
    with needs(f"{input_name(path)}: Parquet, Arrow and zstd", ".[parquet]"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def decode_rows(path: str, kind: str, choose: Choose) -> Rows:
    """Yield the line number and the fields of each row, or the reason why it cannot be read.

    path: of a file, or "-" for standard input. kind: one of FORMATS. Of "json" (an array of
    objects), "parquet" and "arrow" the line number is that of the row. A row of "lines" has one
    column. choose: chooses the columns to read.
    """
    source = input_name(path)
    with open_input(path) as file:
        if kind in ARROW:
            yield from _arrow_rows(file, path, kind, choose)
        elif kind in ("json", "jsonl"):
            yield from _json_rows(file, source)
        elif kind == "lines":
            yield from _line_rows(read_lines(file, source), *choose(["question"]))
        else:
            lines = read_lines(file, source)
            separator, lines = find_separator(lines) if kind == "csv" else ("\t", lines)
            yield from _cell_rows(_read_cells(lines, separator, kind, source), source, choose)


@contextlib.contextmanager
def open_input(path: str) -> Iterator[Any]:
    """Open a file, or standard input for "-", and decompress gzip and zstd.

    UserError if it cannot be opened, or if a read in the body of `with` fails.
    """
    name = input_name(path)
    if path == STANDARD_INPUT and sys.stdin is None:
        raise UserError("standard input is closed", remedy="name a file")
    with contextlib.ExitStack() as stack:
        file: Any = None if path != STANDARD_INPUT else sys.stdin.buffer
        try:
            file = file or stack.enter_context(open(path, "rb", _START))
        except OSError as error:
            remedy = "download it, and name the file" if "://" in path else "name a file"
            raise UserError(f"{path}: cannot be read ({error.strerror})", remedy=remedy) from None
        start = file.peek(4)[:4]
        if start[:2] == b"\x1f\x8b":
            file = io.BufferedReader(gzip.GzipFile(fileobj=file))
        elif start == b"\x28\xb5\x2f\xfd" or start[1:] == b"\x2a\x4d\x18":  # a frame to skip
            arrow = import_pyarrow(path)
            stream = arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd")
            file = io.BufferedReader(stack.enter_context(stream))
        elif start[:2] in _NO_TEXT:
            what = f"{name}: expected text, Parquet or Arrow, got an archive or a spreadsheet"
            raise UserError(what, remedy="decompress it, or export it as CSV")
        try:
            yield file
        except (OSError, EOFError, zlib.error) as error:
            what = f"{name}: cannot be read ({shortened(str(error))})"
            raise UserError(what, remedy="fetch it again") from None


def read_lines(file: Any, source: str) -> Iterator[Line]:
    """Yield the lines of a text file, UTF-8, UTF-16 or UTF-32, without line feeds.

    A carriage return stays, unless there are no line feeds.
    """
    start = file.peek(_START)
    if kind := _TYPED.get(start[:4]):
        what = f"{source}: expected text, got {kind.capitalize()}"
        raise UserError(what, remedy=f"name its format with `--format {kind}`")
    encoding = json.detect_encoding(start)
    if encoding == "utf-8-sig":
        file.read(len(codecs.BOM_UTF8))
    elif encoding != "utf-8":
        try:
            file = io.BytesIO(file.read().decode(encoding).encode())
        except UnicodeError as error:
            what = f"{source}: expected {encoding.upper()} ({error.args[-1]})"
            raise UserError(what, remedy="save the file as UTF-8") from None
    if b"\r" in start[:-1] and b"\n" not in start:
        file = io.BytesIO(file.read().replace(b"\r", b"\n"))
    for number, data in enumerate(file, start=1):
        try:
            yield number, data.removesuffix(b"\n").decode()
        except UnicodeDecodeError:
            yield number, data


def not_utf8(line: bytes) -> str:
    """Say that a line is not UTF-8, and how to convert it from the encoding that it may have."""
    for name, letters in _ENCODINGS.items():
        with contextlib.suppress(UnicodeDecodeError):
            if re.search(letters, line.decode(name)):
                remedy = f"`iconv -f {name} -t UTF-8` converts it"
                return f"{NOT_UTF8}, got {name} as it seems ({remedy})"
    return NOT_UTF8


def _read_cells(
    lines: Iterator[Line], separator: str, kind: str, source: str
) -> Iterator[tuple[int, Cells]]:
    """Yield the line where each row that is not blank begins, and its cells or what is wrong.

    Where quotes do not fit, they are characters in a TSV file, and a bad row of one line in CSV.
    """
    ahead: collections.deque[Line] = collections.deque()  # lines read while a quote was open
    width = 0  # cells of the first row
    swallowed: list[int] = []  # lines in quoted cells that look like rows

    def next_line() -> Line | None:
        return ahead.popleft() if ahead else next(lines, None)

    for number, line in iter(next_line, None):
        if isinstance(line, bytes):
            yield number, not_utf8(line)
            continue
        row: Cells = line.removesuffix("\r").split(separator)
        is_long = False
        if line[:1] == '"' or f'{separator}"' in line:
            quoted, rest = _quoted_cells(line, next_line, separator)
            signs = {isinstance(text, str) and text.count(separator) for _, text in rest}
            like_rows = bool(rest) and width > 1 and {line.count(separator), *signs} == {width - 1}
            misfit = width not in (0, len(quoted)) and (bool(rest) or kind == "tsv")
            if isinstance(quoted, list) and (misfit or (like_rows and kind == "tsv")):
                quoted = _OPEN
            if isinstance(quoted, str):
                ahead.extendleft(reversed(rest))
            elif no_text := [text for _, text in rest if isinstance(text, bytes)]:
                quoted = not_utf8(no_text[0])
            elif like_rows:
                swallowed += [at for at, _ in rest]
            if kind == "csv" or isinstance(quoted, list) or quoted.startswith(NOT_UTF8):
                row, is_long = quoted, bool(rest)
        # A row of several lines is no blank line, even if its cells are blank.
        if isinstance(row, str) or is_long or any(map(str.strip, row)):
            width = width or len(row)
            yield number, row
    if swallowed:
        text = "%s, line %d: quoted cells hold lines that look like rows: %d; check the quotes"
        log.warning(text, source, swallowed[0], len(swallowed))


def _quoted_cells(
    line: str, next_line: Callable[[], Line | None], separator: str
) -> tuple[Cells, list[Line]]:
    """Return the cells of a row or what is wrong, and the lines after the first that were read."""
    rest: list[Line] = []

    def texts() -> Iterator[str]:
        yield f"{line}\n"
        while len(rest) < _LONGEST_ROW and (item := next_line()) is not None:
            rest.append(item)
            text = item[1]
            yield f"{text if isinstance(text, str) else text.decode(errors='replace')}\n"

    with _CSV_LIMIT:
        limit = csv.field_size_limit(_LONGEST_CELL)
        try:
            return next(csv.reader(texts(), delimiter=separator, strict=True)), rest
        except csv.Error as error:
            return (_OPEN if "end of data" in str(error) else f"not CSV ({error})"), rest
        finally:
            csv.field_size_limit(limit)


def find_separator(lines: Iterator[Line]) -> tuple[str, Iterator[Line]]:
    """Return the separator by which most first rows fit the header, and the lines below `sep=`."""
    first = [*itertools.islice(lines, _SHOWN_LINES)]
    whole = itertools.chain(first, lines)
    plain = [re.sub(r'"[^"]*"', "", line) for _, line in first if isinstance(line, str)]
    plain = [*filter(str.strip, plain)]
    if plain and re.fullmatch(r'sep=[^"\r ]\r?', plain[0]):
        return plain[0][4], itertools.islice(whole, 1, None)

    def fit(separator: str) -> tuple[int, int]:
        counts = [line.count(separator) for line in plain]
        return (counts[1:].count(counts[0]) if counts[0] else 0), counts[0]

    return (max(",;\t|", key=fit) if plain else ","), whole


def _cell_rows(rows: Iterator[tuple[int, Cells]], source: str, choose: Choose) -> Rows:
    """Yield the chosen columns of the rows below a header."""
    number, first = next(rows, (0, None))
    if not isinstance(first, list):
        what = f"{source}: expected a header that names the columns, got {first or 'nothing'}"
        raise UserError(what, remedy="give a file with a header, in UTF-8")
    header = [name.strip() for name in first]
    places = {name: header.index(name) for name in choose(header)}
    if not places:  # the first row is no header
        places = {f"{at}": at for at in range(len(header))}
        rows, header = itertools.chain([(number, first)], rows), []
    width, repeated = len(first), 0
    for line, row in rows:
        if isinstance(row, str):
            yield line, row
        elif len(row) < width or any(map(str.strip, row[width:])):
            fields = "field" if width == 1 else "fields"
            yield line, f"expected {width} {fields}, as the header, got {len(row)} in {short(row)}"
        elif [cell.strip() for cell in row] == header:
            repeated += 1
        else:
            yield line, {name: row[at] for name, at in places.items()}
    if repeated:
        log.warning("%s: left out rows that repeat the header: %s", source, f"{repeated:,}")


def _line_rows(lines: Iterator[Line], name: str) -> Rows:
    """Yield lines that are not blank as rows of one column."""
    for number, line in lines:
        if isinstance(line, bytes):
            yield number, not_utf8(line)
        elif line.strip():
            yield number, {name: line.removesuffix("\r")}


def _json_rows(file: Any, source: str) -> Rows:
    """Yield the objects of an array, or of lines."""

    def check(value: Any) -> Fields | str:
        return value if isinstance(value, dict) else f"expected a JSON object, got {short(value)}"

    if file.peek(1).lstrip(_BEFORE_JSON).startswith(b"["):
        try:
            yield from enumerate(map(check, parse_json(file.read())), start=1)
        except NO_JSON as error:
            what = f"{source}: expected an array of JSON objects ({shortened(str(error))})"
            remedy = "correct it, or name another format with `--format`"
            raise UserError(what, remedy=remedy) from None
        return
    for number, line in read_lines(file, source):
        if isinstance(line, bytes):
            yield number, not_utf8(line)
        elif line.strip():
            try:
                yield number, check(parse_json(line))
            except NO_JSON as error:
                yield number, f"expected a JSON object ({error})"


def parse_json(data: bytes | str) -> Any:
    """Parse JSON; ValueError for NaN and infinity, which Python's parser accepts."""

    def refuse(name: str) -> object:
        raise ValueError(f"got {name}, which JSON lacks")

    return json.loads(data, parse_constant=refuse)


def _arrow_rows(file: Any, path: str, kind: str, choose: Choose) -> Rows:
    """Yield the rows of a Parquet file, or of an Arrow IPC file or stream."""
    arrow = import_pyarrow(path)
    try:
        # Of a pipe, gzip says that it is seekable.
        seekable = os.path.isfile(path) and file.seekable()
        data = arrow.PythonFile(file, "r") if seekable else arrow.BufferReader(file.read())
        if kind == "parquet":
            table = arrow.parquet.ParquetFile(data)
            names = [*choose(table.schema_arrow.names)]
            # `columns` takes a name with a dot as the field of a struct.
            dotted = any("." in name for name in names)
            batches = table.iter_batches(columns=None if dotted else names)
        else:
            is_file = data.read(6) == b"ARROW1"
            data.seek(0)
            reader = arrow.ipc.open_file(data) if is_file else arrow.ipc.open_stream(data)
            names = [*choose(reader.schema.names)]
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        yield from enumerate(_batch_rows(batch.select(names) for batch in batches), start=1)
    except arrow.ArrowException as error:
        what = f"{input_name(path)}: expected {kind.capitalize()} ({shortened(str(error))})"
        remedy = "fetch it again, or name another format with `--format`"
        raise UserError(what, remedy=remedy) from None


def _batch_rows(batches: Iterable[Any]) -> Iterator[Fields | str]:
    """Yield the rows of Arrow batches, or NOT_UTF8 for a row with such text."""
    for batch in batches:
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError:
            if len(batch) == 1:
                yield NOT_UTF8
            else:
                yield from _batch_rows(batch.slice(i, 1) for i in range(len(batch)))
