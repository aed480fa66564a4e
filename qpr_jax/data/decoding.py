"""Find, open, decompress and decode the files of tables, and read the lines of text."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import logging
import os
import pathlib
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from qpr_jax.errors import UserError, needs, shortened
from qpr_jax.files import StrPath

log = logging.getLogger("qpr_jax")

STANDARD_INPUT = "-"
FORMATS = ("lines", "tsv", "csv", "jsonl", "json", "parquet", "arrow")
ARROW = ("parquet", "arrow")  # formats whose columns have types
NOT_UTF8 = "expected UTF-8"
SKIP = "skip bad rows (`--skip-bad-rows`, `skip_bad_rows=True`, `data.skip_bad_rows=True`)"

_SUFFIXES = {"feather": "arrow", "ipc": "arrow", "arrows": "arrow"}
_SUFFIXES |= {"ndjson": "jsonl", "pq": "parquet"}
_START = 1 << 16  # bytes that show the encoding and the line ends
_NO_TEXT = (b"PK", b"BZ", b"\xfd7", b"\xd0\xcf")  # zip, bzip2, xz, an old spreadsheet
_TYPED = {b"PAR1": "parquet", b"ARRO": "arrow"}
# Encodings of other programs, with the letters that show each; anything else passes for the last.
_ENCODINGS = {
    "SHIFT_JIS": "[\u3040-\u30ff]",
    "WINDOWS-1251": "[\u0400-\u04ff]{3}",
    "WINDOWS-1252": "",
}

Line = tuple[int, str | bytes]  # its number from 1, and its text; bytes if it is not UTF-8
R = TypeVar("R")
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


def format_of(path: StrPath) -> str:
    """Return the format that a file's name says, or the Parquet files of a folder; "" for none."""
    return "parquet" if next(pathlib.Path(path).rglob("*.parquet"), None) else format_of_name(path)


def format_of_name(path: StrPath) -> str:
    """Return the format of tables that a suffix says, also before .gz and .zst; "" for none."""
    base = os.fspath(path).lower().removesuffix(".gz").removesuffix(".zst")
    kind = os.path.splitext(base)[1].removeprefix(".")
    kind = _SUFFIXES.get(kind, kind)
    return kind if kind in FORMATS[1:] else ""


def table_files(paths: Sequence[StrPath], *, format: str = "") -> tuple[str, ...]:
    """Return the files of `paths` and of its folders: by their names, else with `format` all."""
    files: list[str] = []
    for path in paths:
        if not path:
            raise UserError("expected files, got an empty name", remedy="name a file or a folder")
        if not os.path.isdir(path):
            files.append(os.fspath(path))
            continue
        below = [file for file in pathlib.Path(path).rglob("*") if file.is_file()]
        hidden = re.compile(r"(^|/)[._]")  # also a folder, such as .ipynb_checkpoints
        inside = [str(f) for f in below if not hidden.search(f.relative_to(path).as_posix())]
        named = [
            file for file in inside if format_of_name(file) in ([format] if format else FORMATS)
        ]
        found = named or (inside if format else [])
        if not found:
            suffixes = ".jsonl, .csv, .tsv, .parquet, also .gz and .zst"
            what = f"{path}: expected a folder with tables ({suffixes}), found none"
            raise UserError(what, remedy="name its files, or give their format with `--format`")
        files += sorted(found)
    return tuple(files)


@contextlib.contextmanager
def open_input(path: str) -> Iterator[Any]:
    """Open a file, or standard input for "-", and decompress gzip and zstd.

    UserError if it cannot be opened, or if a read in the body of `with` fails.
    """
    name = input_name(path)
    if path == STANDARD_INPUT and sys.stdin is None:
        raise UserError("standard input is closed", remedy="name a file")
    with contextlib.ExitStack() as stack:
        try:
            is_file = path != STANDARD_INPUT
            file: Any = (
                stack.enter_context(open(path, "rb", _START)) if is_file else sys.stdin.buffer
            )
        except OSError as error:
            remedy = "download it, and name the file" if "://" in path else "name a file"
            raise UserError(f"{path}: cannot be read ({error.strerror})", remedy=remedy) from None
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


def read_lines(file: Any, source: str) -> Iterator[Line]:
    """Yield the lines of a text file, UTF-8, UTF-16 or UTF-32, without line feeds.

    A carriage return stays, unless there are no line feeds.
    """
    start = file.peek(_START)
    if kind := _TYPED.get(start[:4]):
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
    for number, data in enumerate(file, start=1):
        try:
            yield number, data.removesuffix(b"\n").decode()
        except UnicodeDecodeError:
            yield number, data


def not_utf8(line: bytes) -> str:
    """Say that a line is not UTF-8, and how to convert it from the encoding that it may have."""
    for name, letters in _ENCODINGS.items():
        with contextlib.suppress(UnicodeDecodeError):
            if re.search(letters, line.decode(name)):
                remedy = f"`iconv -f {name} -t UTF-8` converts it"
                return f"{NOT_UTF8}, got {name} as it seems ({remedy})"
    return NOT_UTF8


def require(
    names: Sequence[str], required: Sequence[str], *, remedy: str, source: str = ""
) -> Sequence[str]:
    """Return the `required` columns, "" for none; a UserError names one that is not there once."""
    start = f"{source}: " if source else ""
    for name in filter(None, required):
        if name not in names:
            what = f"{start}expected a column `{name}`, got {listed(names)}"
            raise UserError(what, remedy=remedy)
        if names.count(name) > 1:
            what = f"{start}expected one column `{name}`, got {names.count(name)}"
            raise UserError(what, remedy="rename some")
    return required


def listed(names: Sequence[str]) -> str:
    """The names of columns in a message: 20 at most."""
    more = f" and {len(names) - 20} others" if len(names) > 20 else ""
    return ", ".join(f"`{name[:40]}`" for name in names[:20]) + more if names else "none"


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

    def good(
        self, rows: Iterable[tuple[int, R | str]], parse: Callable[[int, R], T]
    ) -> Iterator[T]:
        """Yield what `parse` makes of the line and the fields of each good row.

        A row is bad that has the reason in place of its fields, or where `parse` raises UserError.
        """
        for line, row in rows:
            if isinstance(row, str):
                self.add(line, row)
                continue
            try:
                result = parse(line, row)
            except UserError as error:
                self.add(line, error.what, error.remedy)
            else:
                yield result

    def warn(self) -> None:
        """Log how many rows were skipped, and where and why the first was."""
        if self.count:
            rows = f"{self.count:,} bad row{'s' if self.count > 1 else ''}"
            log.warning("%s: %s left out; %s", self.source, rows, self.first)
