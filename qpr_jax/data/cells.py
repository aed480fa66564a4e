"""Rows of text files: lines, comma-separated and tab-separated cells."""

from __future__ import annotations

import collections
import csv
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from qpr_jax.data.quoted_tsv import hide_returns, short, show_returns
from qpr_jax.errors import UserError

NOT_UTF8 = "expected UTF-8"

_LONGEST_CELL = 1 << 24  # characters
_LONGEST_ROW = 1000  # lines of a tab-separated row whose cells hold line ends
_OPEN_QUOTE = re.compile(r'(?:^|\t)"')

Line = tuple[int, str | None]  # its number from 1, and its text; None for one that is not UTF-8
Cells = tuple[int, list[str] | str]  # the line where a row begins; its cells, or what is wrong


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """Yield the lines of a file without their line ends."""
    for number, line in _decoded(file):
        yield number, None if line is None else line.removesuffix("\r")


def _decoded(file: BinaryIO) -> Iterator[Line]:
    """Yield the lines of a file, with a carriage return where they end in one."""
    for number, data in enumerate(file, start=1):
        if number == 1:
            data = data.removeprefix(b"\xef\xbb\xbf")
        try:
            yield number, data.removesuffix(b"\n").decode()
        except UnicodeDecodeError:
            yield number, None


def csv_rows(file: BinaryIO, source: str) -> Iterator[Cells]:
    """Yield the rows of a CSV file, whose separator its first line shows: , or ; or a tab."""
    lines = _Lines(file)
    reader = csv.reader(lines.texts(), strict=True, delimiter=_separator(lines.first()))
    csv.field_size_limit(_LONGEST_CELL)
    while True:
        start = lines.last_read + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            if "end of data" in str(error):  # else the rest of the file would be one bad row
                what = f"{source}, line {start}: not CSV (a quote is not closed)"
                raise UserError(what, remedy="close the quote") from None
            yield start, f"not CSV ({error}), up to line {lines.last_read}"
            continue
        if row is None:
            return
        if lines.last_broken >= start:
            yield start, NOT_UTF8
        elif row:
            yield start, show_returns(row)


def tsv_rows(file: BinaryIO) -> Iterator[Cells]:
    """Yield the rows of a tab-separated file.

    A cell that begins with a quote is quoted as in CSV, if its row then has as many cells as the
    header; otherwise its quotes are characters like any other.
    """
    csv.field_size_limit(_LONGEST_CELL)
    lines = _decoded(file)
    ahead: collections.deque[Line] = collections.deque()  # read while a quote was open
    width, always = 0, False
    while (item := ahead.popleft() if ahead else next(lines, None)) is not None:
        number, line = item
        if line is None:
            yield number, NOT_UTF8
            continue
        row = line.removesuffix("\r").split("\t")
        if '"' in line and _OPEN_QUOTE.search(line):
            row = _quoted_row(line, lines, ahead, width, always=always) or row
        if row != [""]:
            if not width:
                width = len(row)
                always = any(name.startswith("qid") for name in row)  # as Quora's file
            yield number, row


def _quoted_row(
    line: str, lines: Iterator[Line], ahead: collections.deque[Line], width: int, *, always: bool
) -> list[str] | None:
    """The cells of a row that begins with `line`; None unless its quotes fit.

    always: also where each of its lines could be a row.
    Lines that belong to the row are taken from `ahead`, where those that are read are put first.
    """
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        yield hide_returns(line)
        while taken < _LONGEST_ROW:
            if taken == len(ahead):
                if (item := next(lines, None)) is None:
                    return
                ahead.append(item)
            text = ahead[taken][1]
            taken += 1
            if text is None:
                return
            yield hide_returns(text)

    try:
        row = next(csv.reader(texts(), delimiter="\t", strict=True))
    except csv.Error:
        return None
    if width and len(row) != width:
        return None
    # Of rows whose quotes are characters, several may look like one.
    alone = (line, *(ahead[i][1] or "" for i in range(taken)))
    if taken and not always and all(len(text.split("\t")) == width for text in alone):
        return None
    for _ in range(taken):
        ahead.popleft()
    return show_returns(row)


class _Lines:
    """The lines of a file, with the numbers of the last one read and of the last broken one."""

    def __init__(self, file: BinaryIO) -> None:
        self._lines = _decoded(file)
        self._first = next(self._lines, None)
        self.last_read = self.last_broken = 0

    def first(self) -> str:
        """The first line; empty where there is none."""
        return (self._first[1] or "").removesuffix("\r") if self._first else ""

    def texts(self) -> Iterator[str]:
        """Yield each line with a line end, an empty one for one that is not UTF-8."""
        first: Iterable[Line] = [self._first] if self._first else []
        for source in (first, self._lines):
            for number, line in source:
                self.last_read = number
                if line is None:
                    self.last_broken = number
                yield hide_returns(line or "")


def _separator(header: str) -> str:
    """The separator of a CSV file with this header: the most frequent one outside quotes."""
    plain = re.sub(r'"[^"]*"', "", header)
    return max(",;\t", key=plain.count)


def fit_header(
    rows: Iterator[Cells], source: str
) -> tuple[list[str], Iterator[tuple[int, list[str] | str]]]:
    """Split rows into the names in the header, and the rows below it with as many cells.

    Raises:
      UserError: there is no header.
    """
    for _, header in rows:
        if isinstance(header, str):
            raise UserError(
                f"{source}, line 1: expected a header, got a line that cannot be read ({header})",
                remedy="save the file as UTF-8",
            )
        names = [name.strip() for name in header]
        if any(names):
            return names, _checked(rows, len(names))
    what = f"{source}: expected a header that names the columns, got nothing"
    raise UserError(what, remedy="give a file with one row or more")


def _checked(rows: Iterator[Cells], width: int) -> Iterator[Cells]:
    for line, row in rows:
        if isinstance(row, list) and len(row) != width:
            fields = "field" if width == 1 else "fields"
            row = f"expected {width} {fields}, as the header, got {len(row)} in {short(row)}"
        yield line, row
