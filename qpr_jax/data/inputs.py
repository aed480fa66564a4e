"""Open input files and standard input, decompress them, and read their lines."""

from __future__ import annotations

import contextlib
import gzip
import io
import reprlib
import sys
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from qpr_jax.errors import UserError, needs

STANDARD_INPUT = "-"
NOT_UTF8 = "expected UTF-8"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The first bytes of files that are not read.
_OTHER_FILES = {b"\xfd7z": "xz", b"BZh": "bzip2", b"PK\x03": "a zip file"}
_REPR = reprlib.Repr()
_REPR.maxstring = 60

Line = tuple[int, str | None]  # its number from 1, and its text; None if it is not UTF-8


def short(value: object) -> str:
    """Shorten a value of a file for a message."""
    return _REPR.repr(value)


def input_name(path: str) -> str:
    """Name of an input in messages."""
    return "standard input" if path == STANDARD_INPUT else path


def folder_error(path: str) -> UserError:
    """Make the error for a folder where a file should be."""
    return UserError(f"{path}: expected a file, got a folder", remedy="name a file")


def import_pyarrow(path: str) -> Any:
    """Import the package that reads Parquet, Arrow and zstd; UserError if it is missing."""
    with needs(f"{input_name(path)}: Parquet, Arrow and zstd", ".[parquet]"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def compression(start: bytes) -> str:
    """Return "gzip" or "zstd" for a file with these first bytes, 4 or more; "" for another."""
    if start[:2] == b"\x1f\x8b":
        return "gzip"
    skippable = start[1:4] == b"\x2a\x4d\x18"  # a frame before those of the data
    return "zstd" if skippable or start[:4] == b"\x28\xb5\x2f\xfd" else ""


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """Open a file or standard input and decompress it.

    UserError if it cannot be opened, or if a read in the body of `with` fails.
    """
    with contextlib.ExitStack() as stack:
        file: Any = _open(path, stack)
        if not hasattr(file, "peek"):
            file = io.BufferedReader(file)
        start = file.peek(4)[:4]
        kind = compression(start)
        if kind == "gzip":
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        elif kind == "zstd":
            arrow = import_pyarrow(path)
            stream = arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd")
            file = io.BufferedReader(stack.enter_context(stream))
        elif other := _OTHER_FILES.get(start[:3]):
            what = f"{input_name(path)}: expected text, Parquet or Arrow, got {other}"
            raise UserError(what, remedy="decompress it; gzip and zstd are read as they are")
        try:
            yield file
        except (OSError, EOFError, zlib.error) as error:
            gzipped = isinstance(error, gzip.BadGzipFile | EOFError | zlib.error)
            what = "not whole gzip" if gzipped else "cannot be read"
            what = f"{input_name(path)}: {what} ({first_line(error)})"
            raise UserError(what, remedy="fetch it again") from None


def _open(path: str, stack: contextlib.ExitStack) -> Any:
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise UserError("standard input is closed", remedy="name a file")
        return sys.stdin.buffer
    try:
        return stack.enter_context(open(path, "rb"))
    except IsADirectoryError:
        raise folder_error(path) from None
    except OSError as error:
        what = f"{path}: cannot be read ({error.strerror})"
        raise UserError(what, remedy="name a file") from None


def read_lines(file: BinaryIO, *, keep_returns: bool = False) -> Iterator[Line]:
    """Yield the lines of a file without their line ends.

    keep_returns: keep a carriage return before a line feed.
    """
    for number, data in enumerate(file, start=1):
        if number == 1:
            data = data.removeprefix(_BYTE_ORDER_MARK)
        try:
            line = data.removesuffix(b"\n").decode()
        except UnicodeDecodeError:
            yield number, None
        else:
            yield number, line if keep_returns else line.removesuffix("\r")


def first_line(error: Exception) -> str:
    """First line of the message of an error."""
    return str(error).partition("\n")[0]
