"""Rows of files in any of FORMATS, plain or compressed by gzip or zstd, and of standard input."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TypeVar

from qpr_jax.data.columns import TEXT_NAMES, Choose, Rows, distinct_names, require
from qpr_jax.data.decoding import (
    NOT_UTF8,
    Line,
    input_name,
    not_utf8,
    open_input,
    read_lines,
    short,
)
from qpr_jax.data.records import NO_JSON, arrow_rows, folder_rows, json_rows, parse_json
from qpr_jax.errors import UserError
from qpr_jax.ids import parse_id

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
_MANY_LINES = 5  # that look like rows can hardly be one cell
_CLOSES = re.compile(r'[^"]*(?:""[^"]*)*"(?!")')  # a quote that was opened before
_NEEDS_QUOTES = re.compile(r'^"|[\t\n\r]')

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
            cells = _split(read_lines(file, source), kind)
            yield from _cell_rows(cells, source, choose)
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
        yield from _split(read_lines(file, input_name(path)), format)


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the format that the suffix of a file's name says, compressed or not; "" for none."""
    base = os.fspath(path).lower().removesuffix(".gz").removesuffix(".zst")
    kind = os.path.splitext(base)[1].removeprefix(".")
    kind = _SUFFIXES.get(kind, kind)
    return kind if kind in FORMATS[1:] else ""


def write_tsv(file: IO[str], header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a header and rows of numbers and texts; `read_rows` reads back the same."""
    file.write("\t".join(header) + "\n")
    for row in rows:
        file.write("\t".join(tsv_cell(f"{value}") for value in row) + "\n")


def tsv_cell(text: str) -> str:
    """Quote a text that is not read back as it is."""
    return '"' + text.replace('"', '""') + '"' if _NEEDS_QUOTES.search(text) else text


def _split(lines: Iterator[Line], kind: str) -> Iterator[Cells]:
    """Yield the rows of cells of lines that are not blank.

    A cell that begins with a quote may hold separators and line ends, and a quote in it is doubled.
    Where quotes do not fit, they are characters in a TSV file, and a CSV file has a bad row.
    """
    separator = "\t"
    if kind == "csv":
        separator, lines = _find_separator(lines)
    ahead: collections.deque[Line] = collections.deque()  # lines read while a quote was open
    width = 0
    while (item := ahead.popleft() if ahead else next(lines, None)) is not None:
        number, line = item
        if isinstance(line, bytes):
            yield number, not_utf8(line)
            continue
        row: list[str] | str = line.removesuffix("\r").split(separator)
        if line[:1] == '"' or f'{separator}"' in line:
            quoted, reason = _quoted_row(line, lines, ahead, separator, width)
            if quoted is not None:
                row = quoted
            elif kind == "csv" or reason.startswith(NOT_UTF8):
                row = reason
        if isinstance(row, str) or any(map(str.strip, row)):
            width = width or len(row)
            yield number, row


def _find_separator(lines: Iterator[Line]) -> tuple[str, Iterator[Line]]:
    """Return the separator of a CSV file, and its lines without one as `sep=;`.

    Most of the first rows have as many cells as the header.
    """
    first = [*itertools.islice(lines, _SHOWN_LINES)]
    whole = itertools.chain(first, lines)
    plain = [re.sub(r'"[^"]*"', "", line) for _, line in first if isinstance(line, str)]
    if plain and re.fullmatch(r"sep=.\r?", plain[0]):
        return plain[0][4], itertools.islice(whole, 1, None)

    def fit(separator: str) -> tuple[int, int]:
        counts = [line.count(separator) for line in plain]
        return (counts[1:].count(counts[0]) if counts[0] else 0), counts[0]

    return (max(",;\t|", key=fit) if plain else ","), whole


def _quoted_row(
    line: str, lines: Iterator[Line], ahead: collections.deque[Line], separator: str, width: int
) -> tuple[list[str] | None, str]:
    """Return the cells of a row that begins with `line`, or None and what is wrong with it.

    Lines of the row are taken from `ahead`, where those that are read are put first.
    """
    texts = [line]
    broken = ""
    cells = _parse_quoted(line.removesuffix("\r"), separator)
    while cells is None and len(texts) < _LONGEST_ROW:
        if len(texts) > len(ahead):
            if (item := next(lines, None)) is None:
                break
            ahead.append(item)
        text = ahead[len(texts) - 1][1]
        if isinstance(text, bytes):
            broken, text = not_utf8(text), text.decode(errors="replace")
        texts.append(text)
        if _CLOSES.match(text):
            cells = _parse_quoted("\n".join(texts).removesuffix("\r"), separator)
    if cells is None:
        return None, "not CSV (a quote is not closed)"
    if isinstance(cells, str):
        return None, cells
    fits = not width or len(cells) == width
    if len(texts) > 1 and (not fits or _are_rows(texts, separator, width)):
        return None, "not CSV (a quote is not closed before the next row)"
    if not fits:
        return None, f"expected {width} fields, as the header, got {len(cells)} in {short(cells)}"
    for _ in texts[1:]:
        ahead.popleft()
    return (None, broken) if broken else (cells, "")


def _parse_quoted(text: str, separator: str) -> list[str] | str | None:
    """Return the cells of a row; None if a quote is still open; or what is wrong."""
    pattern, cells, at = _cell_pattern(separator), [], 0
    while match := pattern.match(text, at):
        quoted, plain, end = match.groups()
        cells.append(plain if quoted is None else quoted.replace('""', '"'))
        if not end:
            return cells
        at = match.end()
    return None if not _CLOSES.match(text, at + 1) else "not CSV (text after a closing quote)"


@functools.cache
def _cell_pattern(separator: str) -> re.Pattern[str]:
    """Match a quoted or a plain cell, and the separator or the end of the text after it."""
    end = re.escape(separator)
    return re.compile(rf'(?:"([^"]*(?:""[^"]*)*)"|((?!")[^{end}]*))({end}|\Z)')


def _are_rows(texts: Sequence[str], separator: str, width: int) -> bool:
    """Whether the lines of one row look like rows: a quote in the first is not closed there.

    Each has as many cells as the header. In a CSV file the first ones are rising numbers; in a TSV
    file, where quotes are often characters, one looks as in the first line.
    """
    alone = [text.removesuffix("\r").split(separator) for text in texts]
    if width < 2 or any(len(cells) != width for cells in alone):
        return False
    if separator != "\t":
        numbers = [parse_id(cells[0].strip('"')) for cells in alone]
        found = [number for number in numbers if number is not None]
        return len(found) == len(texts) and found == sorted({*found})
    place = -1 if alone[0][0].startswith('"') else 0
    shapes = {_shape(cells[place]) for cells in alone}
    return len(shapes) == 1 or len(texts) > _MANY_LINES


def _shape(cell: str) -> str:
    """Replace words by a letter and numbers by a digit."""
    return re.sub(r"\d+", "0", re.sub(r"[^\W\d_]+", "a", cell.strip()))


def _cell_rows(rows: Iterator[Cells], source: str, choose: Choose) -> Rows:
    """Yield the chosen columns of the rows below a header."""
    header = _read_header(rows, source)
    names = [*choose(distinct_names(header, source))]
    places = [header.index(name) for name in names]
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
            yield line, {name: row[at] for name, at in zip(names, places, strict=True)}
    if repeated:
        log.warning("%s: left out rows that repeat the header: %s", source, f"{repeated:,}")


def _read_header(rows: Iterator[Cells], source: str) -> list[str]:
    """Take the first row; UserError if there is none."""
    _, header = next(rows, (0, None))
    if header is None:
        what = f"{source}: expected a header that names the columns, got nothing"
        raise UserError(what, remedy="give a file with one row or more")
    if isinstance(header, str):
        what = f"{source}, line 1: expected a header, got a line that cannot be read ({header})"
        raise UserError(what, remedy="save the file as UTF-8")
    return [name.strip() for name in header]


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
