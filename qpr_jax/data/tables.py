"""Rows of a file or of standard input, in any of FORMATS, as they are or by gzip or zstd."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from qpr_jax.data.cells import NOT_UTF8, Cells, csv_rows, fit_header, read_lines, tsv_rows
from qpr_jax.data.columns import TEXT_NAMES
from qpr_jax.data.quoted_tsv import short
from qpr_jax.errors import UserError
from qpr_jax.extras import needs

FORMATS = ("lines", "tsv", "csv", "jsonl", "json", "parquet", "arrow")
STANDARD_INPUT = "-"
_NO_JSON = (ValueError, RecursionError, MemoryError)
_SUFFIXES = {
    "ndjson": "jsonl",
    "feather": "arrow",
    "ipc": "arrow",
    "arrows": "arrow",
    "pq": "parquet",
}
# The first bytes of files that are not read.
_OTHER_FILES = {b"\xfd7z": "xz", b"BZh": "bzip2", b"PK\x03": "a zip file"}
_SPREADSHEETS = (".xlsx", ".xls", ".ods")
_REMEDY = "name its columns so, or another format with `--format`"

Fields = Mapping[str, object]
Rows = Iterator[tuple[int, Fields | str]]
# From the names of all columns to those that are read; of JSON all keys are.
Choose = Callable[[Sequence[str]], Iterable[str]]
T = TypeVar("T")


def read_rows(
    path: str, columns: Sequence[str] | Choose, *, format: str = "", remedy: str = _REMEDY
) -> Rows:
    """Yield the line number and the fields of each row, or the reason why it cannot be read.

    Args:
      path: of a file, or "-" for standard input.
      columns: that each row must have; or which of the columns to read. A row of the format "lines"
        has one, its text.
      format: one of FORMATS; if empty, the suffix of the file's name decides, else "lines". In
        "json" (an array of objects), "parquet" and "arrow" the line number is that of the row.
      remedy: of the UserError for a missing column.
    """
    kind, source = format or format_of(path) or "lines", input_name(path)
    if kind not in FORMATS:
        raise UserError(f"expected one of {', '.join(FORMATS)}, got {format!r}", setting="format")
    if path.lower().endswith(_SPREADSHEETS) and not format:
        what = f"{source}: expected text, Parquet or Arrow, got a spreadsheet"
        raise UserError(what, remedy="save it as CSV")
    if callable(columns):
        choose: Choose = columns
    else:
        choose = functools.partial(_require, columns=columns, source=source, remedy=remedy)
    with open_input(path) as file:
        if kind in ("parquet", "arrow"):
            yield from _arrow_rows(file, path, kind, choose)
        elif kind == "lines":
            names = [*columns(["line"])] if callable(columns) else columns
            yield from _line_rows(file, source, names, sniff=not format)
        elif kind == "csv":
            yield from _cell_rows(csv_rows(file, source), source, choose)
        elif kind == "tsv":
            yield from _cell_rows(tsv_rows(file), source, choose)
        else:
            rows = _json_array(file, source) if kind == "json" else _json_lines(file)
            yield from _json_rows(rows, () if callable(columns) else columns)


def read_values(
    path: str,
    columns: Sequence[str],
    parse: Callable[..., T | None],
    *,
    expected: str,
    format: str = "",
    remedy: str = _REMEDY,
) -> Iterator[tuple[int, T]]:
    """Yield the line number of each row and what `parse` makes of its values of `columns`.

    Raises:
      UserError: `parse` returned None for a row, which is then not what is `expected`.
    """
    for line, fields in read_rows(path, columns, format=format, remedy=remedy):
        values = [] if isinstance(fields, str) else [fields[name] for name in columns]
        result = parse(*values) if values else None
        if result is None:
            got = fields if isinstance(fields, str) else f"got {values!r:.80}"
            what = f"{input_name(path)}, line {line}: expected {expected}; {got}"
            raise UserError(what, remedy="correct the line")
        yield line, result


def format_of(path: str | os.PathLike[str]) -> str:
    """The format that the suffix of a file's name says, compressed or not; empty for none."""
    base = os.fspath(path).lower().removesuffix(".gz").removesuffix(".zst")
    kind = os.path.splitext(base)[1].removeprefix(".")
    kind = _SUFFIXES.get(kind, kind)
    return kind if kind in FORMATS[1:] else ""


def input_name(path: str) -> str:
    """The name of an input in messages."""
    return "standard input" if path == STANDARD_INPUT else path


def compression(start: bytes) -> str:
    """The compression, gzip or zstd, of a file with these first bytes, 4 or more; else empty."""
    if start[:2] == b"\x1f\x8b":
        return "gzip"
    skippable = start[1:4] == b"\x2a\x4d\x18"  # a frame before those of the data
    return "zstd" if skippable or start[:4] == b"\x28\xb5\x2f\xfd" else ""


def folder_error(path: str) -> UserError:
    """The error for a folder where a file should be."""
    return UserError(f"{path}: expected a file, got a folder", remedy="name a file")


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """Open a file or standard input and decompress it.

    UserError where it cannot be opened, and where a read in the body of `with` fails.
    """
    with contextlib.ExitStack() as stack:
        if path == STANDARD_INPUT:
            if sys.stdin is None:
                raise UserError("standard input is closed", remedy="name a file")
            file: Any = sys.stdin.buffer
        else:
            try:
                file = stack.enter_context(open(path, "rb"))
            except IsADirectoryError:
                raise folder_error(path) from None
            except OSError as error:
                reason = f"{path}: cannot be read ({error.strerror})"
                raise UserError(reason, remedy="name a file") from None
        if not hasattr(file, "peek"):
            file = io.BufferedReader(file)
        start = file.peek(4)[:4]
        kind = compression(start)
        if kind == "gzip":
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        elif other := _OTHER_FILES.get(start[:3]):
            what = f"{input_name(path)}: expected text, Parquet or Arrow, got {other}"
            raise UserError(what, remedy="decompress it; gzip and zstd are read as they are")
        elif kind == "zstd":
            arrow = import_pyarrow(path)
            stream = arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd")
            file = io.BufferedReader(stack.enter_context(stream))
        try:
            yield file
        except (OSError, EOFError, zlib.error) as error:
            gzipped = isinstance(error, gzip.BadGzipFile | EOFError | zlib.error)
            what = "not whole gzip" if gzipped else "cannot be read"
            what = f"{input_name(path)}: {what} ({_first_line(error)})"
            raise UserError(what, remedy="fetch it again") from None


def import_pyarrow(path: str) -> Any:
    """The package that reads Parquet and Arrow; UserError where it is missing."""
    with needs(f"{input_name(path)}: Parquet, Arrow and zstd", "qpr_jax[parquet]"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def _arrow_rows(file: BinaryIO, path: str, kind: str, choose: Choose) -> Rows:
    """Yield the rows of a Parquet file, or of an Arrow IPC file or stream."""
    arrow, source = import_pyarrow(path), input_name(path)
    try:
        data = arrow.PythonFile(file, "r") if file.seekable() else arrow.BufferReader(file.read())
        if kind == "parquet":
            table = arrow.parquet.ParquetFile(data)
            names = [*choose(distinct_names(table.schema_arrow.names, source))]
            # A name with a dot would be a field of a struct.
            batches = (batch.select(names) for batch in table.iter_batches())
            if not any("." in name for name in names):
                batches = table.iter_batches(columns=names)
        else:
            is_file = data.read(6) == b"ARROW1"
            data.seek(0)
            read = arrow.ipc.open_file if is_file else arrow.ipc.open_stream
            reader = read(data)
            names = [*choose(distinct_names(reader.schema.names, source))]
            every = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
            batches = (batch.select(names) for batch in every)
        yield from enumerate(_batch_rows(batches), start=1)
    except arrow.ArrowException as error:
        what = f"{source}: expected {kind.capitalize()} ({_first_line(error)})"
        raise UserError(
            what, remedy="fetch it again, or name another format with `--format`"
        ) from None


def _batch_rows(batches: Iterable[Any]) -> Iterator[Fields | str]:
    """Yield the rows of Arrow batches; one that is not UTF-8 costs no other."""
    for batch in batches:
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError:
            if len(batch) == 1:
                yield NOT_UTF8
            else:
                yield from _batch_rows(batch.slice(i, 1) for i in range(len(batch)))


def distinct_names(names: Sequence[str], source: str) -> Sequence[str]:
    """Return the names of columns; a UserError names one that two columns have."""
    for name in names:
        if name and names.count(name) > 1:
            what = f"{source}: expected one column `{name}`, got {names.count(name)}"
            raise UserError(what, remedy="rename some")
    return names


def _require(
    names: Sequence[str], *, columns: Sequence[str], source: str, remedy: str
) -> Sequence[str]:
    """Return `columns`; a UserError names the first that is not among the names."""
    for name in columns:
        if name not in names:
            what = f"{source}: expected a column `{name}`, got {short([*names])}"
            raise UserError(what, remedy=remedy)
    return columns


def _line_rows(file: BinaryIO, source: str, names: Sequence[str], *, sniff: bool) -> Rows:
    """Yield lines of text as rows of one column; sniff: refuse what looks like a table."""
    if len(names) > 1:
        what = f"{source}: expected columns {', '.join(names)}, got lines of text"
        raise UserError(what, remedy="name tsv, csv, jsonl or parquet with `--format`")
    for number, line in read_lines(file):
        if number == 1 and sniff and line and (kind := _table_format(line)):
            what = f"{source}: expected lines of text, got what looks like {kind}"
            raise UserError(what, remedy="name its format with `--format`, lines if it is text")
        if line is None or line.strip():
            yield number, NOT_UTF8 if line is None else {names[0]: line}


def _table_format(line: str) -> str:
    """The format of a table that begins with this line, if it looks like one; else empty."""
    if line.startswith(("PAR1", "ARROW1")):
        return "parquet" if line.startswith("PAR1") else "arrow"
    with contextlib.suppress(*_NO_JSON):
        value = _loads(line)
        if isinstance(value, dict) and value:
            return "jsonl"
    for separator, kind in (("\t", "tsv"), (",", "csv"), (";", "csv")):
        cells = [cell.strip('" ').lower() for cell in line.split(separator)]
        names = {*cells} & {*TEXT_NAMES, "question1"}
        if len(cells) > 1 and names and all(len(c.split()) <= 3 and "?" not in c for c in cells):
            return kind
    return ""


def _cell_rows(rows: Iterator[Cells], source: str, choose: Choose) -> Rows:
    header, body = fit_header(rows, source)
    names = [*choose(distinct_names(header, source))]
    places = [header.index(name) for name in names]
    for line, row in body:
        if isinstance(row, str):
            yield line, row
        else:
            yield line, {name: row[at] for name, at in zip(names, places, strict=True)}


def _loads(data: bytes | str) -> Any:
    """Parse JSON; ValueError for NaN and infinity, which Python's parser takes."""
    return json.loads(data, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"got {name}, which JSON lacks")


def _json_lines(file: BinaryIO) -> Iterator[tuple[int, object]]:
    """Yield the values of lines, or the reason, a string, why one cannot be read."""
    for number, line in read_lines(file):
        if line is None:
            yield number, NOT_UTF8
        elif line.strip():
            try:
                value = _loads(line)
            except _NO_JSON as error:
                yield number, f"expected a JSON object ({error})"
            else:
                yield number, value if isinstance(value, dict) else [value]


def _json_array(file: BinaryIO, source: str) -> Iterator[tuple[int, object]]:
    """Yield the values of one array; lines of JSON, which some call .json, are read as such."""
    data = file.read()
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
        yield from _json_lines(io.BytesIO(data))
        return
    try:
        values = _loads(data)
    except _NO_JSON as error:
        what = f"{source}: expected an array of JSON objects ({_first_line(error)})"
        raise UserError(what, remedy="correct it, or name another format with `--format`") from None
    if not isinstance(values, list):
        what = f"{source}: expected an array of JSON objects, got {short(values)}"
        raise UserError(what, remedy="give an array, or name another format with `--format`")
    for number, value in enumerate(values, start=1):
        yield number, value if isinstance(value, dict) else [value]


def _json_rows(values: Iterator[tuple[int, object]], columns: Sequence[str]) -> Rows:
    for number, value in values:
        if isinstance(value, str):
            yield number, value
        elif not isinstance(value, dict):
            yield number, f"expected a JSON object, got {short(value[0])}"  # type: ignore[index]
        elif missing := [name for name in columns if name not in value]:
            yield number, f"expected the key `{missing[0]}`, got {short(sorted(value))}"
        else:
            yield number, value


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
