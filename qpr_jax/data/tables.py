"""Rows of files in any of FORMATS, plain or compressed by gzip or zstd, and of standard input."""

from __future__ import annotations

import collections
import contextlib
import csv
import functools
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from qpr_jax.data.decoding import (
    ARROW,
    FORMATS,
    NOT_UTF8,
    Line,
    format_of,
    import_pyarrow,
    input_name,
    not_utf8,
    open_input,
    read_lines,
    require,
    table_files,
)
from qpr_jax.errors import UserError, short, shortened
from qpr_jax.files import StrPath, write_atomically

log = logging.getLogger("qpr_jax")

_TEXT_NAMES = (
    "question text query title sentence questions queries prompt utterance subject question_text "
    "query_text question_title"
)
TEXT_NAMES = tuple(_TEXT_NAMES.split())
NAME_COLUMNS = "name its columns so, or another format with `--format`"
_NO_JSON = (ValueError, RecursionError, MemoryError)  # what `_parse_json` raises
_BEFORE_JSON = b"\xef\xbb\xbf\xff\xfe\0 \t\r\n"  # byte order marks and blanks
_LONGEST_ROW = 5000  # lines of a row whose cells hold line ends
_SHOWN_LINES = 20  # that show the separator of a CSV file
_OPEN = "not CSV (a quote is not closed)"
_NEEDS_QUOTES = re.compile(r'^"|[\t\n\r]')

csv.field_size_limit(1 << 30)  # characters of a quoted cell; the default refuses long texts

Fields = Mapping[str, object]
Rows = Iterator[tuple[int, Fields | str]]  # the line of a row; its fields, or what is wrong
# From the names of all columns to those that are read, none where they are a row of a text file
# without a header; of JSON all keys are read.
Choose = Callable[[Sequence[str]], Iterable[str]]
Cells = list[str] | str  # of a row, or what is wrong
T = TypeVar("T")


def read_rows(
    path: str, columns: Sequence[str] | Choose, *, format: str = "", remedy: str = NAME_COLUMNS
) -> Rows:
    """Yield the line number and the fields of each row, or the reason why it cannot be read.

    Args:
      path: of a file, or of a folder of Parquet files, or "-" for standard input.
      columns: names that each row must have, or a function that chooses columns to read. A row of
        the format "lines" has one, its text.
      format: one of FORMATS; if empty, the suffix of the file's name decides, else "lines". In
        "json" (an array of objects), "parquet" and "arrow" the line number is that of the row.
      remedy: of the UserError for a missing column.
    """
    kind, source = format or format_of(path) or "lines", input_name(path)
    if kind not in FORMATS:
        raise UserError(f"expected one of {', '.join(FORMATS)}, got {format!r}", setting="format")
    if kind == "parquet" and os.path.isdir(path):
        read = functools.partial(read_rows, columns=columns, format=kind, remedy=remedy)
        rows = itertools.chain.from_iterable(map(read, table_files([path], format=kind)))
        yield from enumerate((row for _, row in rows), start=1)
        return
    names = () if callable(columns) else columns
    check = functools.partial(require, required=names, remedy=remedy, source=source)
    choose: Choose = columns if callable(columns) else check
    with open_input(path) as file:
        if kind in ARROW:
            yield from _arrow_rows(file, path, kind, choose)
        elif kind in ("json", "jsonl"):
            yield from _json_rows(file, source, names)
        elif kind == "lines":
            names = names or [*choose(["question"])]
            yield from _line_rows(read_lines(file, source), source, names, sniff=not format)
        else:
            lines = read_lines(file, source)
            separator, lines = _find_separator(lines) if kind == "csv" else ("\t", lines)
            yield from _cell_rows(_read_cells(lines, separator, kind, source), source, choose)


def read_values(
    path: str,
    columns: Sequence[str],
    parse: Callable[..., T | None],
    *,
    expected: str,
    format: str = "",
    remedy: str = NAME_COLUMNS,
) -> Iterator[T]:
    """Yield what `parse` makes of the values of `columns` of each row.

    UserError if that is None: the row is not what is `expected`.
    """
    for line, fields in read_rows(path, columns, format=format, remedy=remedy):
        values = [] if isinstance(fields, str) else [fields[name] for name in columns]
        result = parse(*values) if values else None
        if result is None:
            got = fields if isinstance(fields, str) else f"got {values!r:.80}"
            what = f"{input_name(path)}, line {line}: expected {expected}; {got}"
            raise UserError(what, remedy="correct the line")
        yield result


def separator_of(path: str, format: str = "") -> str:
    """Return the separator of the cells of a CSV file; "," for other inputs."""
    if not os.path.isfile(path) or (format or format_of(path)) != "csv":
        return ","
    with open_input(path) as file:
        return _find_separator(read_lines(file, path))[0]


def write_tsv(path: StrPath, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a file of a header and rows of numbers and texts; `read_rows` reads back the same."""
    with write_atomically(path, "w") as file:
        for row in itertools.chain([header], rows):
            file.write("\t".join(tsv_cell(f"{value}") for value in row) + "\n")


def tsv_cell(text: str) -> str:
    """Quote a text that is not read back as it is."""
    return '"' + text.replace('"', '""') + '"' if _NEEDS_QUOTES.search(text) else text


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
                row = quoted
        if isinstance(row, str) or any(map(str.strip, row)):
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

    try:
        return next(csv.reader(texts(), delimiter=separator, strict=True)), rest
    except csv.Error as error:
        return (_OPEN if "end of data" in str(error) else f"not CSV ({error})"), rest


def _find_separator(lines: Iterator[Line]) -> tuple[str, Iterator[Line]]:
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
    if first is None:
        what = f"{source}: expected a header that names the columns, got nothing"
        raise UserError(what, remedy="give a file with one row or more")
    if isinstance(first, str):
        what = f"{source}, line {number}: expected a header, got what cannot be read ({first})"
        raise UserError(what, remedy="save the file as UTF-8")
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


def _line_rows(lines: Iterator[Line], source: str, names: Sequence[str], *, sniff: bool) -> Rows:
    """Yield lines of text as rows of one column; sniff: refuse what looks like a table."""
    if len(names) > 1:
        what = f"{source}: expected columns {', '.join(names)}, got lines of text"
        raise UserError(what, remedy="name tsv, csv, jsonl or parquet with `--format`")
    for number, line in lines:
        if isinstance(line, bytes):
            yield number, not_utf8(line)
            continue
        if number == 1 and sniff and (kind := _table_format(line)):
            what = f"{source}: expected lines of text, got what looks like {kind}"
            raise UserError(what, remedy="name its format with `--format`, lines if it is text")
        if line.strip():
            yield number, {names[0]: line.removesuffix("\r")}


def _table_format(line: str) -> str:
    """Return the format of a table that begins with this line, if it looks like one; else ""."""
    with contextlib.suppress(*_NO_JSON):
        value = _parse_json(line)
        if isinstance(value, dict) and value:
            return "jsonl"
    cells = [cell.strip('" \r').lower() for cell in re.split("[\t,;]", line)]
    short_cells = all(len(cell.split()) <= 3 and "?" not in cell for cell in cells)
    # A sentence has commas, but no tabs: a word of a name is enough between these.
    names = re.split(r"\W+", line.lower()) if "\t" in line else cells
    if len(cells) > 1 and short_cells and not {*names}.isdisjoint((*TEXT_NAMES, "question1")):
        return "tsv" if "\t" in line else "csv"
    return ""


def _json_rows(file: Any, source: str, columns: Sequence[str]) -> Rows:
    """Yield the objects of an array, or of lines; each must have the columns."""

    def check(value: Any) -> Fields | str:
        if not isinstance(value, dict):
            return f"expected a JSON object, got {short(value)}"
        if missing := [name for name in columns if name not in value]:
            return f"expected the key `{missing[0]}`, got {short(sorted(value))}"
        return value

    if file.peek(1).lstrip(_BEFORE_JSON).startswith(b"["):
        try:
            yield from enumerate(map(check, _parse_json(file.read())), start=1)
        except _NO_JSON as error:
            what = f"{source}: expected an array of JSON objects ({shortened(str(error))})"
            remedy = "correct it, or name another format with `--format`"
            raise UserError(what, remedy=remedy) from None
        return
    for number, line in read_lines(file, source):
        if isinstance(line, bytes):
            yield number, not_utf8(line)
        elif line.strip():
            try:
                yield number, check(_parse_json(line))
            except _NO_JSON as error:
                yield number, f"expected a JSON object ({error})"


def _parse_json(data: bytes | str) -> Any:
    """Parse JSON; ValueError for NaN and infinity, which Python's parser accepts."""

    def refuse(name: str) -> object:
        raise ValueError(f"got {name}, which JSON lacks")

    return json.loads(data, parse_constant=refuse)


def _arrow_rows(file: Any, path: str, kind: str, choose: Choose) -> Rows:
    """Yield the rows of a Parquet file, or of an Arrow IPC file or stream."""
    arrow, source = import_pyarrow(path), input_name(path)
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
        what = f"{source}: expected {kind.capitalize()} ({shortened(str(error))})"
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
