"""Tab-separated tables in the quoting of Quora's file.

A field that begins with a quote is quoted: it may hold tabs and line ends, and a quote inside it is
doubled. In any other field a quote is an ordinary character.
"""

from __future__ import annotations

import csv
import pathlib
import re
import reprlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from qpr_jax.files import StrPath
from qpr_jax.ids import parse_id

QUESTIONS = ("qid", "question")  # the header of a table of questions

_NEEDS_QUOTES = re.compile(r'^"|[\t\n\r]')
# Up to the end of the first quoted field that goes on behind its closing quote.
_TO_BAD_QUOTE = re.compile(r'(?:(?:"(?:[^"]|"")*+"|[^"\t][^\t]*+|)\t)*+"(?:[^"]|"")*+"')
_RETURN = "\ud800"  # stands for a carriage return; no decoded text has this character


def has_header(path: StrPath, header: Sequence[str]) -> bool:
    """Whether a file's first line is this header; False where there is no such file."""
    if not pathlib.Path(path).is_file():
        return False
    with open(path, "rb") as file:
        first = file.readline(200).removeprefix(b"\xef\xbb\xbf")
    return first.rstrip(b"\r\n").split(b"\t") == [name.encode() for name in header]


def write_rows(file: IO[str], header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a header and rows of numbers and texts; `parse_rows` reads back the same."""
    file.write("\t".join(header) + "\n")
    for row in rows:
        file.write("\t".join(tsv_cell(f"{value}") for value in row) + "\n")


def tsv_cell(text: str) -> str:
    """A text as a cell that is read back as it is."""
    return '"' + text.replace('"', '""') + '"' if _NEEDS_QUOTES.search(text) else text


def decode_lines(data: bytes) -> list[str]:
    """A file's lines; a byte that is not UTF-8 becomes a lone surrogate (see `check_utf8`)."""
    return data.decode("utf-8", "surrogateescape").removeprefix("\ufeff").split("\n")


def parse_rows(
    lines: list[str], start: int, count: int, *, row_start: re.Pattern[str] | None = None
) -> Iterator[tuple[int, list[str] | str]]:
    """Yield, for each row, the index of its first line and its fields, or what is wrong with it.

    A bad row costs its first line only: the next row begins at the line below.

    Args:
      lines: of the file.
      start: the index of the first row's line.
      count: fields of a row.
      row_start: the beginning of every row. A line inside a quoted field that begins so ends the
        row, whose quote was not closed: the next quote of the file would take all rows between for
        its text.
    """
    while start < len(lines):
        line = lines[start]
        end = start + 1
        if line not in ("", "\r"):
            row: list[str] | str
            try:
                if '"' in line:
                    row, end = split_row(lines, start, row_start)
                else:
                    row = line.removesuffix("\r").split("\t")
                if len(row) != count:
                    end = start + 1
                    row = f"expected {count} fields, got {len(row)} in {short(line)}"
            except ValueError as error:
                row = str(error)
            yield start, row
        start = end


def hide_returns(line: str) -> str:
    """A line for `csv`, for which a carriage return outside quotes would end a row."""
    if "\r" in line[:-1]:
        line = line[:-1].replace("\r", _RETURN) + line[-1]
    return line + "\n"


def show_returns(row: list[str]) -> list[str]:
    """The cells of a row of lines from `hide_returns`, as they were."""
    return [cell.replace(_RETURN, "\r") for cell in row]


def split_row(
    lines: list[str], start: int, row_start: re.Pattern[str] | None = None
) -> tuple[list[str], int]:
    """The fields of a row that may hold quotes, and the index of the line after it.

    ValueError says what is wrong; `row_start` as in `parse_rows`.
    """
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(_lines_of_row(lines, start, row_start), delimiter="\t", strict=True)
    try:
        fields = next(reader)
    except csv.Error as error:
        if "end of data" in str(error):
            raise ValueError(f"expected a closing quote in {short(lines[start])}") from None
        text = "\n".join(lines[start : start + reader.line_num]).removesuffix("\r")
        good = _TO_BAD_QUOTE.match(text)
        raise ValueError(
            "expected a tab after a closing quote (a quote inside a quoted field is doubled), got "
            f"{short(text[good.end() :] if good else text)} in {short(lines[start])}"
        ) from None
    return show_returns(fields), start + reader.line_num


def _lines_of_row(lines: list[str], start: int, row_start: re.Pattern[str] | None) -> Iterator[str]:
    """Yield the lines from `start` on, up to one that begins like a row."""
    for index in range(start, len(lines)):
        line = lines[index]
        if index > start and row_start and row_start.match(line):
            return
        yield hide_returns(line)


def parse_qid(name: str, text: str) -> int:
    """A whole number of 63 bits; ValueError where `text` is none."""
    value = parse_id(text)
    if value is None or not text.isdigit():  # `parse_id` strips blanks
        raise ValueError(f"expected `{name}` to be a whole number, got {short(text)}")
    return value


def check_utf8(name: str, text: str) -> None:
    """ValueError where the bytes of a text were not UTF-8."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            bad = text[error.start : error.end].encode("utf-8", "surrogateescape")
            raise ValueError(f"expected UTF-8 in `{name}`, got the bytes {bad!r}") from None


_REPR = reprlib.Repr()
_REPR.maxstring = 60


def short(value: object) -> str:
    """A value of a file as a message shows it."""
    return _REPR.repr(value)
