"""Open input files and standard input, decompress and decode them, and read their lines."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import logging
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from qpr_jax.errors import UserError, needs, shortened

log = logging.getLogger("qpr_jax")

STANDARD_INPUT = "-"
NOT_UTF8 = "expected UTF-8"
SKIP = "skip bad rows (`--skip-bad-rows`, `skip_bad_rows=True`, `data.skip_bad_rows=True`)"

_START = 1 << 16  # bytes that show the encoding and the line ends
_NO_TEXT = (b"PK", b"BZ", b"\xfd7", b"\xd0\xcf")  # zip, bzip2, xz, an old spreadsheet
_ARROW = {b"PAR1": "parquet", b"ARRO": "arrow"}
# Encodings of other programs, with the letters that show each.
_ENCODINGS = {
    "SHIFT_JIS": "[\u3040-\u30ff]",
    "WINDOWS-1251": "[\u0400-\u04ff]{3}",
    "WINDOWS-1252": "",
}

Line = tuple[int, str | bytes]  # its number from 1, and its text; bytes if it is not UTF-8
T = TypeVar("T")


def input_name(path: str) -> str:
    """Name of an input in messages."""
    return "standard input" if path == STANDARD_INPUT else path


def import_pyarrow(path: str) -> Any:
    """Import the package that reads Parquet, Arrow and zstd; UserError if it is missing."""
    with needs(f"{input_name(path)}: Parquet, Arrow and zstd", ".[parquet]"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """Open a file, or standard input for "-", and decompress gzip and zstd.

    UserError if it cannot be opened, or if a read in the body of `with` fails.
    """
    name = input_name(path)
    with contextlib.ExitStack() as stack:
        file: Any = _open(path, stack)
        start = file.peek(4)[:4]
        if start[:2] == b"\x1f\x8b":
            file = io.BufferedReader(gzip.GzipFile(fileobj=file))
        elif start == b"\x28\xb5\x2f\xfd" or start[1:] == b"\x2a\x4d\x18":  # a frame to skip
            arrow = import_pyarrow(path)
            stream = arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd")
            file = io.BufferedReader(stack.enter_context(stream))
        elif start[:2] in _NO_TEXT:
            what = f"{name}: expected text, Parquet or Arrow, got an archive or a spreadsheet"
            raise UserError(what, remedy="decompress it, or export it as CSV")
        try:
            yield file
        except (OSError, EOFError, zlib.error) as error:
            what = f"{name}: cannot be read ({shortened(str(error))})"
            raise UserError(what, remedy="fetch it again") from None


def _open(path: str, stack: contextlib.ExitStack) -> Any:
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise UserError("standard input is closed", remedy="name a file")
        return sys.stdin.buffer
    try:
        return stack.enter_context(open(path, "rb", _START))
    except OSError as error:
        what = f"{path}: cannot be read ({error.strerror})"
        remedy = "download it, and name the file" if "://" in path else "name a file"
        raise UserError(what, remedy=remedy) from None


def read_lines(file: BinaryIO, source: str) -> Iterator[Line]:
    """Yield the lines of a text file, UTF-8, UTF-16 or UTF-32, without line feeds.

    A carriage return stays, unless there are no line feeds.
    """
    for number, data in enumerate(_as_utf8(file, source), start=1):
        try:
            yield number, data.removesuffix(b"\n").decode()
        except UnicodeDecodeError:
            yield number, data


def _as_utf8(file: Any, source: str) -> BinaryIO:
    """Return the file in UTF-8 with line feeds, without a byte order mark."""
    start = file.peek(_START)
    if kind := _ARROW.get(start[:4]):
        what = f"{source}: expected text, got {kind.capitalize()}"
        raise UserError(what, remedy=f"name its format with `--format {kind}`")
    encoding = json.detect_encoding(start)
    if encoding == "utf-8-sig":
        file.read(len(codecs.BOM_UTF8))
    elif encoding != "utf-8":
        try:
            file = io.BytesIO(file.read().decode(encoding).encode())
        except UnicodeError as error:
            what = f"{source}: expected {encoding.upper()} ({error.args[-1]})"
            raise UserError(what, remedy="save the file as UTF-8") from None
    if b"\r" in start[:-1] and b"\n" not in start:
        file = io.BytesIO(file.read().replace(b"\r", b"\n"))
    return file


def not_utf8(line: bytes) -> str:
    """Say that a line is not UTF-8, and how to convert it from the encoding that it seems to have.

    Kana show Shift-JIS, three letters in a row Cyrillic; anything else passes for Western European.
    """
    for name, letters in _ENCODINGS.items():
        with contextlib.suppress(UnicodeDecodeError):
            if re.search(letters, line.decode(name)):
                remedy = f"`iconv -f {name} -t UTF-8` converts it"
                return f"{NOT_UTF8}, got {name} as it seems ({remedy})"
    return NOT_UTF8


@dataclass
class BadRows:
    """What to do about bad rows of a table: refuse the first one, or skip and `count` them."""

    source: str  # of the rows, in messages
    skip: bool
    option: str = SKIP  # remedy that skips them
    place: str = "line"  # what numbers the rows
    count: int = 0
    first: str = ""  # the place and the reason of the first

    def add(self, number: int, reason: str, remedy: str = "") -> None:
        """Count a bad row; UserError unless bad rows are skipped."""
        what = f"{self.place} {number}: {reason}"
        if not self.skip:
            remedy = remedy or f"correct it, or {self.option}"
            raise UserError(f"{self.source}, {what}", remedy=remedy)
        self.count += 1
        self.first = self.first or what

    def good(self, rows: Iterable[tuple[int, T | str]]) -> Iterator[T]:
        """Yield the good rows; the others are reasons why a row is bad."""
        for line, row in rows:
            if isinstance(row, str):
                self.add(line, row)
            else:
                yield row

    def warn(self) -> None:
        """Log how many rows were skipped, and where and why the first was."""
        if self.count:
            rows = f"{self.count:,} bad row{'s' if self.count > 1 else ''}"
            log.warning("%s: %s left out; %s", self.source, rows, self.first)
