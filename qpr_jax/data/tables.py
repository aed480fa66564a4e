"""Rows of files in any of FORMATS, plain or compressed by gzip or zstd, and of standard input."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from qpr_jax.data.cells import Cells, csv_cells, tsv_cells
from qpr_jax.data.columns import TEXT_NAMES
from qpr_jax.data.inputs import (
    NOT_UTF8,
    first_line,
    import_pyarrow,
    input_name,
    open_input,
    read_lines,
    short,
)
from qpr_jax.errors import UserError

FORMATS = ("lines", "tsv", "csv", "jsonl", "json", "parquet", "arrow")
_NO_JSON = (ValueError, RecursionError, MemoryError)
_SUFFIXES = {
    "ndjson": "jsonl",
    "feather": "arrow",
    "ipc": "arrow",
    "arrows": "arrow",
    "pq": "parquet",
}
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
      columns: names that each row must have, or a function that chooses columns to read. A row of
        the format "lines" has one, its text.
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
        elif kind in ("csv", "tsv"):
            cells = csv_cells(file, source) if kind == "csv" else tsv_cells(file)
            yield from _cell_rows(cells, source, choose)
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
      UserError: `parse` returned None, so the row is not what is `expected`.
    """
    for line, fields in read_rows(path, columns, format=format, remedy=remedy):
        values = [] if isinstance(fields, str) else [fields[name] for name in columns]
        result = parse(*values) if values else None
        if result is None:
            got = fields if isinstance(fields, str) else f"got {values!r:.80}"
            what = f"{input_name(path)}, line {line}: expected {expected}; {got}"
            raise UserError(what, remedy="correct the line")
        yield line, result


def read_cells(path: str, format: str) -> Iterator[Cells]:
    """Yield the rows of a "csv" or "tsv" file, the header or first row included."""
    with open_input(path) as file:
        yield from csv_cells(file, input_name(path)) if format == "csv" else tsv_cells(file)


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the format that the suffix of a file's name says, compressed or not; "" for none."""
    base = os.fspath(path).lower().removesuffix(".gz").removesuffix(".zst")
    kind = os.path.splitext(base)[1].removeprefix(".")
    kind = _SUFFIXES.get(kind, kind)
    return kind if kind in FORMATS[1:] else ""


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


def _arrow_rows(file: BinaryIO, path: str, kind: str, choose: Choose) -> Rows:
    """Yield the rows of a Parquet file, or of an Arrow IPC file or stream."""
    arrow, source = import_pyarrow(path), input_name(path)
    try:
        # Of a pipe, gzip says that it is seekable.
        seekable = os.path.isfile(path) and file.seekable()
        data = arrow.PythonFile(file, "r") if seekable else arrow.BufferReader(file.read())
        if kind == "parquet":
            table = arrow.parquet.ParquetFile(data)
            names = [*choose(distinct_names(table.schema_arrow.names, source))]
            # `columns` takes a name with a dot as the field of a struct.
            dotted = any("." in name for name in names)
            batches = table.iter_batches(columns=None if dotted else names)
        else:
            is_file = data.read(6) == b"ARROW1"
            data.seek(0)
            reader = arrow.ipc.open_file(data) if is_file else arrow.ipc.open_stream(data)
            names = [*choose(distinct_names(reader.schema.names, source))]
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        yield from enumerate(_batch_rows(batch.select(names) for batch in batches), start=1)
    except arrow.ArrowException as error:
        what = f"{source}: expected {kind.capitalize()} ({first_line(error)})"
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
    """Return the format of a table that begins with this line, if it looks like one; else ""."""
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
    """Yield the chosen columns of the rows below a header."""
    header = _read_header(rows, source)
    names = [*choose(distinct_names(header, source))]
    places = [header.index(name) for name in names]
    width = len(header)
    for line, row in rows:
        if isinstance(row, str):
            yield line, row
        elif len(row) != width:
            fields = "field" if width == 1 else "fields"
            yield line, f"expected {width} {fields}, as the header, got {len(row)} in {short(row)}"
        else:
            yield line, {name: row[at] for name, at in zip(names, places, strict=True)}


def _read_header(rows: Iterator[Cells], source: str) -> list[str]:
    """Take the first row with a name; UserError if there is none."""
    for _, header in rows:
        if isinstance(header, str):
            what = f"{source}, line 1: expected a header, got a line that cannot be read ({header})"
            raise UserError(what, remedy="save the file as UTF-8")
        names = [name.strip() for name in header]
        if any(names):
            return names
    what = f"{source}: expected a header that names the columns, got nothing"
    raise UserError(what, remedy="give a file with one row or more")


def _loads(data: bytes | str) -> Any:
    """Parse JSON; ValueError for NaN and infinity, which Python's parser accepts."""
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
    """Yield the values of one array; JSON lines in a file named .json are read as such."""
    data = file.read()
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
        yield from _json_lines(io.BytesIO(data))
        return
    try:
        values = _loads(data)
    except _NO_JSON as error:
        what = f"{source}: expected an array of JSON objects ({first_line(error)})"
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
