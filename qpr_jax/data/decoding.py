"""Open input files and standard input, decompress and decode them, and read their lines."""

from __future__ import annotations

import contextlib
import gzip
import io
import logging
import os
import reprlib
import sys
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from qpr_jax.errors import UserError, needs

log = logging.getLogger("qpr_jax")

STANDARD_INPUT = "-"
NOT_UTF8 = "expected UTF-8"

_START = 1 << 16  # bytes that show the encoding and the line ends
_ARCHIVES = {b"\xfd7z": "an xz file", b"BZh": "a bzip2 file", b"\xd0\xcf\x11": "a spreadsheet"}
_ARROW = {b"PAR1": "parquet", b"ARRO": "arrow"}
_REPR = reprlib.Repr()
_REPR.maxstring = 60

Line = tuple[int, str | bytes]  # its number from 1, and its text; bytes if it is not UTF-8


def short(value: object) -> str:
    """Shorten a value of a file for a message."""
    return _REPR.repr(value)


def first_line(error: Exception) -> str:
    """First line of the message of an error."""
    return str(error).partition("\n")[0]


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
    """Open a file or standard input and decompress gzip and zstd.

    UserError if it cannot be opened, or if a read in the body of `with` fails.
    """
    with contextlib.ExitStack() as stack:
        file: Any = _open(path, stack)
        if not hasattr(file, "peek"):
            file = io.BufferedReader(file)
        start = file.peek(4)[:4]
        if start[:2] == b"\x1f\x8b":
            file = io.BufferedReader(gzip.GzipFile(fileobj=file))
        elif start == b"\x28\xb5\x2f\xfd" or start[1:] == b"\x2a\x4d\x18":  # a frame to skip
            arrow = import_pyarrow(path)
            stream = arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd")
            file = io.BufferedReader(stack.enter_context(stream))
        elif kind := _archive(start):
            remedy = "export it as CSV" if "sheet" in kind else "decompress it, or use gzip or zstd"
            what = f"{input_name(path)}: expected text, Parquet or Arrow, got {kind}"
            raise UserError(what, remedy=remedy)
        try:
            yield file
        except (OSError, EOFError, zlib.error) as error:
            gzipped = isinstance(error, gzip.BadGzipFile | EOFError | zlib.error)
            what = "not whole gzip" if gzipped else "cannot be read"
            what = f"{input_name(path)}: {what} ({first_line(error)})"
            raise UserError(what, remedy="fetch it again") from None


def _archive(start: bytes) -> str:
    if start[:2] == b"PK":
        return "a zip file, maybe a spreadsheet"
    return _ARCHIVES.get(start[:3], "")


def _open(path: str, stack: contextlib.ExitStack) -> Any:
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise UserError("standard input is closed", remedy="name a file")
        return sys.stdin.buffer
    try:
        return stack.enter_context(open(path, "rb", _START))
    except IsADirectoryError:
        what = f"{path}: expected a file, got a folder"
        raise UserError(
            what, remedy="name a file in it, or join its files of text and give `-`"
        ) from None
    except OSError as error:
        what = f"{path}: cannot be read ({error.strerror})"
        remedy = "download it, and name the file" if "://" in path else "name a file"
        raise UserError(what, remedy=remedy) from None


def read_lines(file: BinaryIO, source: str) -> Iterator[Line]:
    """Yield the lines of a text file without their line feeds; a carriage return stays.

    UTF-16 is decoded, and lines that end in carriage returns alone are divided.
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
    if encoding := _wide_encoding(start):
        try:
            file = io.BytesIO(file.read().decode(encoding).encode())
        except UnicodeError as error:
            what = f"{source}: expected {encoding.upper()} ({error.args[-1]})"
            raise UserError(what, remedy="save the file as UTF-8") from None
    elif start.startswith(b"\xef\xbb\xbf"):
        file.read(3)
    if b"\r" in start[:-1] and b"\n" not in start:
        file = io.BytesIO(file.read().replace(b"\r", b"\n"))
    return file


def _wide_encoding(start: bytes) -> str:
    """Return the UTF-16 encoding of a file that begins so, or "" for another."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    return {b"\0": "utf-16-be"}.get(start[:1], "utf-16-le" if start[1:2] == b"\0" else "")


def not_utf8(line: bytes) -> str:
    """Say what is wrong with a line that is not UTF-8, with the encoding that it seems to have."""
    guess = _encoding(line)
    return f"{NOT_UTF8}, got what looks like {guess}" if guess else NOT_UTF8


def _encoding(line: bytes) -> str:
    """Guess the encoding of a line: by Japanese kana, by Cyrillic words, or by single letters."""
    high = sum(byte >= 0x80 for byte in line)
    with contextlib.suppress(UnicodeDecodeError):
        if any("\u3040" <= sign <= "\u30ff" for sign in line.decode("shift_jis")):
            return "SHIFT_JIS"
    with contextlib.suppress(UnicodeDecodeError):
        words = "".join(line.decode("cp1251").split())
        if high > max(3, len(words) / 2) and all(
            sign.isalpha() for sign in words if sign >= "\u0400"
        ):
            return "WINDOWS-1251"
    with contextlib.suppress(UnicodeDecodeError):
        line.decode("cp1252")
        return "WINDOWS-1252" if high <= len(line) / 3 else ""
    return ""


def warn_left_out(source: str, count: int, first: str) -> None:
    """Log how many bad rows were left out, and where and why the first was."""
    if count:
        rows = f"{count:,} bad row{'s' if count > 1 else ''}"
        log.warning("%s: %s left out; %s", source, rows, first)


def row_remedy(reason: str, otherwise: str, path: str = "FILE") -> str:
    """Say what to do about a bad row: convert the file, or correct the row; or `otherwise`."""
    if not reason.startswith(NOT_UTF8):
        return f"correct it, or {otherwise}"
    guess = reason.rpartition("looks like ")[2]
    if guess == reason:
        return f"save the file as UTF-8, or {otherwise}"
    name = path if os.path.isfile(path) else "FILE"
    return f"save the file as UTF-8 (`iconv -f {guess} -t UTF-8 {name}`), or {otherwise}"
