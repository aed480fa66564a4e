"""Tables with tabs between fields, quoted as CSV where a text would break them: as Quora's file is.

A field is quoted where it begins with a quote; a quote inside a quoted field is doubled, and tabs
and line ends stand in it as they are.
"""

from __future__ import annotations

import pathlib
import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from qpr_jax.files import Path

QUESTIONS = ("qid", "question")  # the header of a table of questions

_BREAKING = re.compile(r'^"|[\t\n\r]')


def has_header(path: Path, header: Sequence[str]) -> bool:
    """Whether a file's first line is this header; False where there is no such file."""
    if not pathlib.Path(path).is_file():
        return False
    with open(path, "rb") as file:
        first = file.readline(200).removeprefix(b"\xef\xbb\xbf")
    return first.rstrip(b"\r\n").split(b"\t") == [name.encode() for name in header]


def write_rows(file: IO[str], header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a header and rows of numbers and texts, which `parse_rows` gives back as they were."""
    file.write("\t".join(header) + "\n")
    for row in rows:
        file.write("\t".join(_cell(f"{value}") for value in row) + "\n")


def _cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _BREAKING.search(text) else text


def read_questions_table(path: Path) -> Iterator[tuple[int, int, str] | tuple[int, None, str]]:
    """(line, qid, question) of each row of a file with the header QUESTIONS.

    Of a row that cannot be read, (line, None, the reason).
    """
    lines = decoded_lines(pathlib.Path(path).read_bytes())
    for start, fields in parse_rows(lines, 1, len(QUESTIONS)):
        try:
            if isinstance(fields, str):
                raise ValueError(fields)
            qid = parse_qid("qid", fields[0])
            refuse_broken("question", fields[1])
        except ValueError as error:
            yield start + 1, None, str(error)
        else:
            yield start + 1, qid, fields[1]


def decoded_lines(data: bytes) -> list[str]:
    """A file's lines; a byte that is not UTF-8 becomes a lone surrogate (see `refuse_broken`)."""
    return data.decode("utf-8", "surrogateescape").removeprefix("\ufeff").split("\n")


def parse_rows(
    lines: list[str], start: int, count: int, *, row_start: re.Pattern[str] | None = None
) -> Iterator[tuple[int, list[str] | str]]:
    """Yield (index of the row's first line, its fields or what is wrong with it).

    Args:
      lines: of the file. start: the index of the first row's line.
      count: fields of a row.
      row_start: what a row begins with. A line inside a quoted field that begins so is taken for
        the row after one whose quote was not closed.
    """
    while start < len(lines):
        line = lines[start]
        if line in ("", "\r"):
            start += 1
            continue
        end = start + 1
        try:
            if '"' in line:
                fields, end = split_row(lines, start, row_start)
            else:
                fields = line.removesuffix("\r").split("\t")
            if len(fields) != count:
                # The row's end is in doubt, so it must not take the lines below with it.
                end = start + 1
                raise ValueError(f"expected {count} fields, got {len(fields)} in {short(line)}")
            row: list[str] | str = fields
        except ValueError as error:
            row = str(error)
        yield start, row
        start = end


def split_row(
    lines: list[str], start: int, row_start: re.Pattern[str] | None = None
) -> tuple[list[str], int]:
    """The fields of a row that may hold quotes, and the index of the line after it.

    Quotes count at a field's start only, and a closing quote must end its field. ValueError says
    what is wrong; `row_start` as of `parse_rows`.
    """
    fields: list[str] = []
    index, at = start, 0
    while True:
        line = lines[index].removesuffix("\r")
        if line.startswith('"', at):
            text, index, stop = _quoted_field(lines, index, at + 1, row_start)
            line = lines[index].removesuffix("\r")
            # Else an unclosed quote would close at the next row's quote, and take that row along.
            if stop < len(line) and line[stop] != "\t":
                raise ValueError(
                    "expected a tab after a closing quote (a quote inside a quoted field is "
                    f"doubled), got {short(line[stop:])} in {short(lines[start])}"
                )
        else:
            stop = line.find("\t", at)
            stop = len(line) if stop < 0 else stop
            text = line[at:stop]
        fields.append(text)
        if stop == len(line):
            return fields, index + 1
        at = stop + 1


def _quoted_field(
    lines: list[str], index: int, at: int, row_start: re.Pattern[str] | None
) -> tuple[str, int, int]:
    """The field whose text starts at (`index`, `at`), and where its closing quote ends."""
    start = index
    parts: list[str] = []
    while True:
        line = lines[index]
        stop = line.find('"', at)
        if stop < 0:
            parts.append(line[at:] + "\n")
            index, at = index + 1, 0
            # The beginning of a row inside a quoted field: it was not closed, and another quote
            # further down would take all rows between for its text.
            if index == len(lines) or (row_start and row_start.match(lines[index])):
                raise ValueError(f"expected a closing quote in {short(lines[start])}")
        elif line.startswith('"', stop + 1):
            parts.append(line[at : stop + 1])
            at = stop + 2
        else:
            return "".join(parts) + line[at:stop], index, stop + 1


def parse_qid(name: str, text: str) -> int:
    """A whole number of 63 bits; ValueError where `text` is none."""
    # int() alone would accept blanks, signs, underscores and other scripts' digits.
    if text.isascii() and text.isdigit() and len(text) <= 19 and (value := int(text)) < 2**63:
        return value
    raise ValueError(f"expected `{name}` to be a whole number, got {short(text)}")


def refuse_broken(name: str, text: str) -> None:
    """ValueError where a text was not UTF-8."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            bad = text[error.start : error.end].encode("utf-8", "surrogateescape")
            raise ValueError(f"expected UTF-8 in `{name}`, got the bytes {bad!r}") from None


_REPR = reprlib.Repr()
_REPR.maxstring = 60


def short(text: str) -> str:
    """A text as a message shows it."""
    return _REPR.repr(text)
