"""Rows of a file or of standard input: lines, TSV, CSV, JSON lines or Parquet, gzip or zstd."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar

from qpr_jax.data.quoted_tsv import short
from qpr_jax.errors import UserError

FORMATS = ("lines", "tsv", "csv", "jsonl", "parquet")
STANDARD_INPUT = "-"
_LONGEST_CELL = 1 << 24  # characters
_NOT_UTF8 = "expected UTF-8"
_REMEDY = "name the column with {column}, or another format with {format}"
_FIXED_REMEDY = "name its columns so, or another format with {format}"

Fields = dict[str, object]
T = TypeVar("T")


def read_rows(
    path: str, columns: Sequence[str], *, format: str = "", remedy: str = _REMEDY
) -> Iterator[tuple[int, Fields | str]]:
    """Yield the line number and the fields of each row, or the reason why it cannot be read.

    Args:
      path: of a file, or "-" for standard input.
      columns: that each row must have. A row of the format "lines" has one, its text.
      format: one of FORMATS; if empty, the suffix of the file's name decides, else "lines". In
        "parquet" the line number is that of the row.
      remedy: of the UserError for a missing column.
    """
    kind = format or format_of(path) or "lines"
    if kind not in FORMATS:
        raise UserError(f"expected one of {', '.join(FORMATS)}, got {format!r}", setting="format")
    if kind == "lines" and len(columns) > 1:
        what = f"{input_name(path)}: expected columns {', '.join(columns)}, got lines of text"
        raise UserError(what, remedy="name tsv, csv, jsonl or parquet with {format}")
    with _open_input(path) as file:
        try:
            if kind == "parquet":
                yield from _parquet_rows(file, path, columns, remedy)
            elif kind == "lines":
                for number, line in _lines(file):
                    if line is None or line.strip():
                        yield number, _NOT_UTF8 if line is None else {columns[0]: line}
            elif kind == "jsonl":
                yield from _json_rows(file, columns)
            else:
                yield from _cell_rows(file, path, columns, kind, remedy)
        except (OSError, EOFError, zlib.error) as error:
            gzipped = isinstance(error, gzip.BadGzipFile | EOFError | zlib.error)
            what = "not whole gzip" if gzipped else "cannot be read"
            what = f"{input_name(path)}: {what} ({_first_line(error)})"
            raise UserError(what, remedy="fetch it again") from None


def read_values(
    path: str,
    columns: Sequence[str],
    parse: Callable[..., T | None],
    *,
    expected: str,
    format: str = "",
    remedy: str = _FIXED_REMEDY,
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
    kind = os.path.splitext(base)[1].removeprefix(".").replace("ndjson", "jsonl")
    return kind if kind in FORMATS[1:] else ""


def input_name(path: str) -> str:
    """The name of an input in messages."""
    return "standard input" if path == STANDARD_INPUT else path


@contextlib.contextmanager
def _open_input(path: str) -> Iterator[BinaryIO]:
    """Open a file or standard input and decompress it."""
    with contextlib.ExitStack() as stack:
        if path == STANDARD_INPUT:
            if sys.stdin is None:
                raise UserError("standard input is closed", remedy="name a file")
            file: Any = sys.stdin.buffer
        else:
            try:
                file = stack.enter_context(open(path, "rb"))
            except OSError as error:
                reason = f"{path}: cannot be read ({error.strerror})"
                raise UserError(reason, remedy="name a file") from None
        if not hasattr(file, "peek"):
            file = io.BufferedReader(file)
        start = file.peek(4)[:4]
        if start[:2] == b"\x1f\x8b":
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        elif start == b"\x28\xb5\x2f\xfd" or start[1:] == b"\x2a\x4d\x18":  # or a skippable frame
            arrow = _pyarrow(path)
            stream = arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd")
            file = io.BufferedReader(stack.enter_context(stream))
        yield file


def _pyarrow(path: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        what = f"{input_name(path)}: Parquet and zstd need another package"
        raise UserError(what, remedy="pip install 'qpr_jax[parquet]'") from None
    return pyarrow


def _parquet_rows(
    file: BinaryIO, path: str, columns: Sequence[str], remedy: str
) -> Iterator[tuple[int, Fields | str]]:
    arrow = _pyarrow(path)
    try:
        table = arrow.parquet.ParquetFile(
            arrow.PythonFile(file, "r") if file.seekable() else arrow.BufferReader(file.read())
        )
        names = table.schema_arrow.names
        _check_columns(path, names, columns, remedy)
        read = [name for name in dict.fromkeys((*columns, "id")) if name in names]
        yield from enumerate(_batch_rows(table.iter_batches(columns=read)), start=1)
    except arrow.ArrowException as error:
        what = f"{input_name(path)}: expected Parquet ({_first_line(error)})"
        raise UserError(what, remedy="fetch it again") from None


def _batch_rows(batches: Iterable[Any]) -> Iterator[Fields | str]:
    """Yield the rows of Arrow batches; one that is not UTF-8 costs no other."""
    for batch in batches:
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError:
            if len(batch) == 1:
                yield _NOT_UTF8
            else:
                yield from _batch_rows(batch.slice(i, 1) for i in range(len(batch)))


def _check_columns(path: str, names: Sequence[str], columns: Sequence[str], remedy: str) -> None:
    """UserError where one of the columns is missing or repeated."""
    for name in (*columns, "id"):
        if (count := names.count(name)) > 1:
            what = f"{input_name(path)}: expected one column `{name}`, got {count}"
            raise UserError(what, remedy="rename some")
        if not count and name in columns:
            what = f"{input_name(path)}: expected a column `{name}`, got {short(names)}"
            raise UserError(what, remedy=remedy)


def _lines(file: BinaryIO) -> Iterator[tuple[int, str | None]]:
    """Yield the number and the text of each line; None for one that is not UTF-8."""
    for number, data in enumerate(file, start=1):
        if number == 1:
            data = data.removeprefix(b"\xef\xbb\xbf")
        try:
            yield number, data.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            yield number, None


def _json_rows(file: BinaryIO, columns: Sequence[str]) -> Iterator[tuple[int, Fields | str]]:
    for number, line in _lines(file):
        if line is None:
            yield number, _NOT_UTF8
        elif line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"expected a JSON object ({error})"
                continue
            if not isinstance(value, dict):
                yield number, f"expected a JSON object, got {short(value)}"
            elif missing := [name for name in columns if name not in value]:
                yield number, f"expected the key `{missing[0]}`, got {short(sorted(value))}"
            else:
                yield number, value


def _cell_rows(
    file: BinaryIO, path: str, columns: Sequence[str], kind: str, remedy: str
) -> Iterator[tuple[int, Fields | str]]:
    last_read = last_broken = 0

    def text() -> Iterator[str]:
        nonlocal last_read, last_broken
        for number, line in _lines(file):
            last_read = number
            if line is None:
                last_broken = number
            yield f"{line or ''}\n"

    csv.field_size_limit(_LONGEST_CELL)
    if kind == "tsv":
        rows: Iterator[list[str]] = (line.removesuffix("\n").split("\t") for line in text())
    else:
        rows = csv.reader(text(), strict=True)
    header: list[str] | None = None
    while True:
        start = last_read + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            if "end of data" in str(error):  # else the rest of the file would be one bad row
                what = f"{input_name(path)}, line {start}: not CSV (a quote is not closed)"
                raise UserError(what, remedy="close it") from None
            yield start, f"not CSV ({error}), up to line {last_read}"
            continue
        if row is None:
            break
        if header is None:
            header = [name.strip() for name in row]
            _check_columns(path, header, columns, remedy)
        elif last_broken >= start:
            yield start, _NOT_UTF8
        elif len(row) != len(header):
            if row not in ([], [""]):
                yield start, f"expected {len(header)} fields, as the header, got {len(row)}"
        else:
            yield start, dict(zip(header, row, strict=True))
    if header is None:
        raise UserError(f"{input_name(path)}: expected a header with `{columns[0]}`, got nothing")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
