"""Rows of files in any of FORMATS, plain or compressed by gzip or zstd, and of standard input."""

from __future__ import annotations

import collections
import contextlib
import csv
import functools
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TypeVar

from qpr_jax.data.columns import TEXT_NAMES, Choose, Rows, distinct_names, require
from qpr_jax.data.decoding import NOT_UTF8, Line, input_name, not_utf8, open_input, read_lines
from qpr_jax.data.records import NO_JSON, arrow_rows, folder_rows, json_rows, parse_json
from qpr_jax.errors import UserError, short

log = logging.getLogger("qpr_jax")

FORMATS = ("lines", "tsv", "csv", "jsonl", "json", "parquet", "arrow")
_SUFFIXES = {
    "ndjson": "jsonl",
    "feather": "arrow",
    "ipc": "arrow",
    "arrows": "arrow",
    "pq": "parquet",
}
_REMEDY = "name its columns so, or another format with `--format`"
_LONGEST_ROW = 5000  # lines of a row whose cells hold line ends
_SHOWN_LINES = 20  # that show the separator of a CSV file
_OPEN = "not CSV (a quote is not closed)"
_NEEDS_QUOTES = re.compile(r'^"|[\t\n\r]')

csv.field_size_limit(1 << 30)  # characters of a quoted cell; the default refuses long texts

Cells = tuple[int, list[str] | str]  # the line where a row begins; its cells, or what is wrong
T = TypeVar("T")


def read_rows(
    path: str, columns: Sequence[str] | Choose, *, format: str = "", remedy: str = _REMEDY
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
    if callable(columns):
        choose: Choose = columns
    else:
        choose = functools.partial(require, required=columns, remedy=remedy, source=source)
    if kind == "parquet" and os.path.isdir(path):
        yield from folder_rows(path, choose)
        return
    with open_input(path) as file:
        if kind in ("parquet", "arrow"):
            yield from arrow_rows(file, path, kind, choose)
        elif kind == "lines":
            names = [*columns(["line"])] if callable(columns) else columns
            yield from _line_rows(read_lines(file, source), source, names, sniff=not format)
        elif kind in ("csv", "tsv"):
            cells = _CellReader(read_lines(file, source), kind, source)
            yield from _cell_rows(iter(cells), source, choose)
        else:
            yield from json_rows(file, source, kind, () if callable(columns) else columns)


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

    UserError if that is None: the row is not what is `expected`.
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
    """Return the format that the suffix of a file's name says, compressed or not; "" for none."""
    base = os.fspath(path).lower().removesuffix(".gz").removesuffix(".zst")
    kind = os.path.splitext(base)[1].removeprefix(".")
    kind = _SUFFIXES.get(kind, kind)
    return kind if kind in FORMATS[1:] else ""


def separator_of(path: str, format: str = "") -> str:
    """Return the separator of the cells of a CSV file; "," for other inputs."""
    if not os.path.isfile(path) or (format or format_of(path)) != "csv":
        return ","
    with open_input(path) as file:
        return _CellReader(read_lines(file, path), "csv", path).separator


def write_tsv(file: IO[str], header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a header and rows of numbers and texts; `read_rows` reads back the same."""
    for row in itertools.chain([header], rows):
        file.write("\t".join(tsv_cell(f"{value}") for value in row) + "\n")


def tsv_cell(text: str) -> str:
    """Quote a text that is not read back as it is."""
    return '"' + text.replace('"', '""') + '"' if _NEEDS_QUOTES.search(text) else text


class _CellReader:
    """The rows of a CSV or TSV file that have cells which are not blank.

    Where quotes do not fit, they are characters in a TSV file, and a bad row of one line in CSV.
    """

    def __init__(self, lines: Iterator[Line], kind: str, source: str) -> None:
        self.kind, self.source = kind, source
        self.separator, self.lines = _find_separator(lines) if kind == "csv" else ("\t", lines)
        self.ahead: collections.deque[Line] = collections.deque()  # read while a quote was open
        self.width = 0  # cells of the first row
        self.swallowed: list[int] = []  # lines in quoted cells that look like rows

    def __iter__(self) -> Iterator[Cells]:
        """Yield the line where each row begins, and its cells or what is wrong with it."""
        while (item := self.ahead.popleft() if self.ahead else next(self.lines, None)) is not None:
            number, line = item
            if isinstance(line, bytes):
                yield number, not_utf8(line)
                continue
            row: list[str] | str = line.removesuffix("\r").split(self.separator)
            if line[:1] == '"' or f'{self.separator}"' in line:
                quoted = self._quoted_row(number, line)
                if self.kind == "csv" or isinstance(quoted, list) or quoted.startswith(NOT_UTF8):
                    row = quoted
            if isinstance(row, str) or any(map(str.strip, row)):
                self.width = self.width or len(row)
                yield number, row
        if self.swallowed:
            text = "%s, line %d: quoted cells hold lines that look like rows: %d; check the quotes"
            log.warning(text, self.source, self.swallowed[0], len(self.swallowed))

    def _quoted_row(self, number: int, line: str) -> list[str] | str:
        """Return the cells of a row, or what is wrong; its other lines leave `ahead`."""
        texts = self._texts(line)
        reader = csv.reader(texts, delimiter=self.separator, strict=True)
        try:
            cells = next(reader)
        except csv.Error as error:
            return _OPEN if "end of data" in str(error) else f"not CSV ({error})"
        more, is_tsv = reader.line_num - 1, self.kind == "tsv"
        rest = [text for _, text in itertools.islice(self.ahead, more)]
        like_rows = more > 0 and all(self._is_like_row(text) for text in (line, *rest))
        fits = self.width in (0, len(cells)) or not (more or is_tsv)
        if not fits or (like_rows and is_tsv):
            return _OPEN
        if like_rows:
            self.swallowed += range(number + 1, number + 1 + more)
        for _ in rest:
            self.ahead.popleft()
        wrong = [not_utf8(text) for text in rest if isinstance(text, bytes)]
        return wrong[0] if wrong else cells

    def _texts(self, line: str) -> Iterator[str]:
        """Yield a line and those after it, which stay in `ahead`."""
        yield f"{line}\n"
        for place in range(_LONGEST_ROW):
            if place == len(self.ahead):
                self.ahead.extend(itertools.islice(self.lines, 1))
            if place == len(self.ahead):
                return
            text = self.ahead[place][1]
            yield f"{text if isinstance(text, str) else text.decode(errors='replace')}\n"

    def _is_like_row(self, text: str | bytes) -> bool:
        return isinstance(text, str) and text.count(self.separator) == self.width - 1 > 0


def _find_separator(lines: Iterator[Line]) -> tuple[str, Iterator[Line]]:
    """Return the separator by which most first rows fit the header, and the lines below `sep=`."""
    first = [*itertools.islice(lines, _SHOWN_LINES)]
    whole = itertools.chain(first, lines)
    plain = [re.sub(r'"[^"]*"', "", line) for _, line in first if isinstance(line, str)]
    if plain and re.fullmatch(r'sep=[^"\r ]\r?', plain[0]):
        return plain[0][4], itertools.islice(whole, 1, None)

    def fit(separator: str) -> tuple[int, int]:
        counts = [line.count(separator) for line in plain]
        return (counts[1:].count(counts[0]) if counts[0] else 0), counts[0]

    return (max(",;\t|", key=fit) if plain else ","), whole


def _cell_rows(rows: Iterator[Cells], source: str, choose: Choose) -> Rows:
    """Yield the chosen columns of the rows below a header."""
    _, first = next(rows, (0, None))
    if first is None:
        what = f"{source}: expected a header that names the columns, got nothing"
        raise UserError(what, remedy="give a file with one row or more")
    if isinstance(first, str):
        what = f"{source}, line 1: expected a header, got a line that cannot be read ({first})"
        raise UserError(what, remedy="save the file as UTF-8")
    header = [name.strip() for name in first]
    places = {name: header.index(name) for name in choose(distinct_names(header, source))}
    width, repeated = len(header), 0
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
    with contextlib.suppress(*NO_JSON):
        value = parse_json(line)
        if isinstance(value, dict) and value:
            return "jsonl"
    for separator, kind in (("\t", "tsv"), (",", "csv"), (";", "csv")):
        cells = [cell.strip('" \r').lower() for cell in line.split(separator)]
        names = {*cells} & {*TEXT_NAMES, "question1"}
        if len(cells) > 1 and names and all(len(c.split()) <= 3 and "?" not in c for c in cells):
            return kind
    return ""
