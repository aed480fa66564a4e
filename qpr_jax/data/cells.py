"""Rows of cells: comma-separated and tab-separated text.

In tab-separated text a cell that begins with a quote is quoted as in CSV: it may hold tabs and line
ends, and a quote inside it is doubled. In any other cell a quote is an ordinary character.
"""

from __future__ import annotations

import collections
import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, BinaryIO

from qpr_jax.data.inputs import NOT_UTF8, Line, read_lines
from qpr_jax.errors import UserError

_LONGEST_CELL = 1 << 24  # characters
_LONGEST_ROW = 1000  # lines of a tab-separated row whose cells hold line ends
_OPEN_QUOTE = re.compile(r'(?:^|\t)"')
_NUMBERED = ("id", "qid", "qid1")  # names of a first column of numbers
_NEEDS_QUOTES = re.compile(r'^"|[\t\n\r]')
_RETURN = "\ud800"  # stands for a carriage return; no decoded text has this character

Cells = tuple[int, list[str] | str]  # the line where a row begins; its cells, or what is wrong


def csv_cells(file: BinaryIO, source: str) -> Iterator[Cells]:
    """Yield the rows of a CSV file, whose separator its first line shows: , or ; or a tab."""
    csv.field_size_limit(_LONGEST_CELL)
    lines = read_lines(file, keep_returns=True)
    first = next(lines, (0, ""))
    last = broken = 0  # numbers of the last line, and of the last one that is not UTF-8

    def texts() -> Iterator[str]:
        nonlocal last, broken
        for number, line in itertools.chain([first] if first[0] else [], lines):
            last = number
            if line is None:
                broken = number
            yield _hide_returns(line or "")

    plain = re.sub(r'"[^"]*"', "", first[1] or "")
    reader = csv.reader(texts(), strict=True, delimiter=max(",;\t", key=plain.count))
    while True:
        start = last + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            if "end of data" in str(error):  # else the rest of the file would be one bad row
                what = f"{source}, line {start}: not CSV (a quote is not closed)"
                raise UserError(what, remedy="close the quote") from None
            yield start, f"not CSV ({error}), up to line {last}"
            continue
        if row is None:
            return
        if broken >= start:
            yield start, NOT_UTF8
        elif row:
            yield start, _show_returns(row)


def tsv_cells(file: BinaryIO) -> Iterator[Cells]:
    """Yield the rows of a tab-separated file.

    Quotes that do not fit, so that a row has not as many cells as the first, are characters.
    """
    csv.field_size_limit(_LONGEST_CELL)
    lines = read_lines(file, keep_returns=True)
    ahead: collections.deque[Line] = collections.deque()  # read while a quote was open
    width, numbered = 0, False
    while (item := ahead.popleft() if ahead else next(lines, None)) is not None:
        number, line = item
        if line is None:
            yield number, NOT_UTF8
            continue
        row = line.removesuffix("\r").split("\t")
        if '"' in line and _OPEN_QUOTE.search(line):
            row = _quoted_row(line, lines, ahead, width, numbered=numbered) or row
        if row != [""]:
            if not width:
                width = len(row)
                numbered = row[0].strip() in _NUMBERED
            yield number, row


def _quoted_row(
    line: str, lines: Iterator[Line], ahead: collections.deque[Line], width: int, *, numbered: bool
) -> list[str] | None:
    """Return the cells of a row that begins with `line`; None unless its quotes fit.

    Lines of the row are taken from `ahead`, where those that are read are put first.

    numbered: the first cell of a row is a number, so that lines of a quoted text are no rows.
    """
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        yield _hide_returns(line)
        while taken < _LONGEST_ROW:
            if taken == len(ahead):
                if (item := next(lines, None)) is None:
                    return
                ahead.append(item)
            text = ahead[taken][1]
            taken += 1
            if text is None:
                return
            yield _hide_returns(text)

    try:
        row = next(csv.reader(texts(), delimiter="\t", strict=True))
    except csv.Error:
        return None
    if width and len(row) != width:
        return None
    alone = [text.split("\t") for text in (line, *(ahead[i][1] or "" for i in range(taken)))]
    rows = all(len(c) == width and (c[0].isdigit() or not numbered) for c in alone)
    if taken and rows:  # each line is a row, and the quotes are characters
        return None
    for _ in range(taken):
        ahead.popleft()
    return _show_returns(row)


def write_tsv(file: IO[str], header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a header and rows of numbers and texts; `tsv_cells` reads back the same."""
    file.write("\t".join(header) + "\n")
    for row in rows:
        file.write("\t".join(tsv_cell(f"{value}") for value in row) + "\n")


def tsv_cell(text: str) -> str:
    """Quote a text that is not read back as it is."""
    return '"' + text.replace('"', '""') + '"' if _NEEDS_QUOTES.search(text) else text


def _hide_returns(line: str) -> str:
    """Make a line for `csv`, which ends a row at a carriage return outside quotes."""
    if "\r" in line[:-1]:
        line = line[:-1].replace("\r", _RETURN) + line[-1]
    return line + "\n"


def _show_returns(row: list[str]) -> list[str]:
    """Undo `_hide_returns` in cells."""
    return [cell.replace(_RETURN, "\r") for cell in row]
