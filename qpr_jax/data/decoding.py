"""Files of tables, and their rows, in any of FORMATS, plain or compressed, and standard input."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import itertools
import json
import logging
import os
import pathlib
import re
import sys
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from qpr_jax import kinds
from qpr_jax.data.separated import Cells, find_separator, read_cells
from qpr_jax.data.typed_rows import (
    ARROW,
    NO_JSON,
    NOT_UTF8,
    STANDARD_INPUT,
    Choose,
    Line,
    Rows,
    arrow_rows,
    import_pyarrow,
    input_name,
    json_rows,
)
from qpr_jax.errors import UserError, short, shortened
from qpr_jax.files import StrPath
from qpr_jax.kinds import TEXT_NAMES
from qpr_jax.text.cleaning import without_unseen

log = logging.getLogger("qpr_jax")

FORMATS = ("lines", "tsv", "csv", "jsonl", "json", "parquet", "arrow")
_SUFFIXES = {"feather": "arrow", "ipc": "arrow", "arrows": "arrow"}
_SUFFIXES |= {"ndjson": "jsonl", "pq": "parquet"}
_CODE = re.compile(  # suffixes
    r"pyi?|ipynb|[mc]?jsx?|tsx?|css|html?|xml|sh|bash|bat|ps1|sql|[ch]|[ch]pp|cc|cs|java|go|rs|rb|"
    r"php|pl|r|lua|swift|kt|scala|tex"
)
_TEXTS = re.compile(r"\.txt(\.gz|\.zst)?$")

_START = 1 << 16  # bytes that show the encoding and the line ends
# zip, bzip2, xz, an old spreadsheet, PDF, an image, vectors
_NO_TEXT = (b"PK", b"BZ", b"\xfd7", b"\xd0\xcf", b"%PDF", b"\x89PNG", b"\x93NUM")
_TYPED = {b"PAR1": "parquet", b"ARRO": "arrow"}
# Encodings of other programs.
_OF_OTHERS = (
    "GB18030 BIG5 SHIFT_JIS EUC-JP EUC-KR WINDOWS-1252 WINDOWS-1250 ISO-8859-2 WINDOWS-1251 KOI8-R "
    "WINDOWS-1253 WINDOWS-1254 WINDOWS-1255 WINDOWS-1256 CP850 MACINTOSH"
)
_ENCODINGS = tuple(_OF_OTHERS.split())
_MOST_ENCODINGS = 8  # that a message lists
_JAPANESE = {"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}  # written beside Chinese characters


def format_of(path: StrPath) -> str:
    """Return the format that a file's name says, or the Parquet files of a folder; "" for none."""
    return "parquet" if next(pathlib.Path(path).rglob("*.parquet"), None) else format_of_name(path)


def format_of_name(path: StrPath) -> str:
    """Return the format of tables that a suffix says, also before .gz and .zst; "" for none."""
    kind = _SUFFIXES.get(_suffix(path), _suffix(path))
    return kind if kind in FORMATS[1:] else ""


def _suffix(path: StrPath) -> str:
    base = os.fspath(path).lower().removesuffix(".gz").removesuffix(".zst")
    return os.path.splitext(base)[1].removeprefix(".")


def table_format(line: str) -> str:
    """Return the format of a table that begins with this line, if it looks like one; else ""."""
    with contextlib.suppress(*NO_JSON):
        value = json.loads(line)
        if isinstance(value, dict) and value:
            return "jsonl"
    cells = [cell.strip('" \r').lower() for cell in re.split("[\t,;]", line)]
    short_cells = all(len(cell.split()) <= 3 and "?" not in cell for cell in cells)
    # A sentence has commas, but no tabs: a word of a name is enough between these.
    names = re.split(r"\W+", line.lower()) if "\t" in line else cells
    if len(cells) > 1 and short_cells and not {*names}.isdisjoint((*TEXT_NAMES, "question1")):
        return "tsv" if "\t" in line else "csv"
    return ""


def refuse_code(path: str) -> None:
    """Raise a UserError for a file that has no rows of text, as its suffix says."""
    if _CODE.fullmatch(suffix := _suffix(path)):
        what = f"{path}: expected a table or lines of text, got source code (.{suffix})"
        tables = ", ".join(f".{kind}" for kind in FORMATS[1:])
        remedy = f"name a table ({tables}), or its format with `format`, lines if it is text"
        raise UserError(what, remedy=remedy)


def table_files(paths: Sequence[StrPath], *, format: str = "") -> tuple[str, ...]:
    """Return the files of `paths`, and of a folder its tables, else those that end in .txt.

    format: of all files; then those of a folder without tables of this format may have any name.
    """
    files: list[str] = []
    for path in paths:
        if not path:
            raise UserError("expected files, got an empty name", remedy="name a file or a folder")
        if not os.path.isdir(path):
            files.append(os.fspath(path))
            continue
        kinds.refuse_kind(path, kinds.TABLE)
        below = [file for file in pathlib.Path(path).rglob("*") if file.is_file()]
        written = [folder for folder in {file.parent for file in below} if kinds.kind_of(folder)]
        for folder in sorted({*written} - {pathlib.Path(path)}):
            log.info("%s: left out, since another command wrote it", folder)
            below = [file for file in below if not file.is_relative_to(folder)]
        hidden = re.compile(r"(^|/)[._]")  # also a folder, such as .ipynb_checkpoints
        inside = [str(f) for f in below if not hidden.search(f.relative_to(path).as_posix())]
        formats = [format] if format else FORMATS
        named = [file for file in inside if format_of_name(file) in formats]
        found = named or [f for f in inside if format or _TEXTS.search(f)]
        if not found:
            suffixes = ".jsonl, .csv, .tsv, .parquet, else .txt, also .gz and .zst"
            what = f"{path}: expected a folder with tables ({suffixes}), found none"
            raise UserError(what, remedy="name its files, or give their format with `format`")
        files += sorted(found)
    return tuple(files)


def decode_rows(path: str, kind: str, choose: Choose) -> Rows:
    """Yield the line number and the fields of each row, or the reason why it cannot be read.

    path: of a file, or "-" for standard input. kind: one of FORMATS. Of "json" (an array of
    objects), "parquet" and "arrow" the line number is that of the row. A row of "lines" has one
    column. choose: chooses the columns to read.
    """
    source = input_name(path)
    with open_input(path) as file:
        if kind in ARROW:
            yield from arrow_rows(file, path, kind, choose)
        elif kind in ("json", "jsonl"):
            yield from json_rows(read_lines(file, source), source)
        elif kind == "lines":
            yield from _line_rows(read_lines(file, source), *choose(["question"]))
        else:
            lines = read_lines(file, source)
            separator, lines = find_separator(lines, source) if kind == "csv" else ("\t", lines)
            yield from _cell_rows(read_cells(lines, separator, kind, source), source, choose)


@contextlib.contextmanager
def open_input(path: str) -> Iterator[Any]:
    """Open a file, or standard input for "-", and decompress gzip and zstd.

    UserError if it cannot be opened, or if a read in the body of `with` fails.
    """
    name = input_name(path)
    if path == STANDARD_INPUT and sys.stdin is None:
        raise UserError("standard input is closed", remedy="name a file")
    if path == STANDARD_INPUT and sys.stdin.isatty():
        log.info("reading standard input, which Ctrl-D on a line of its own ends")
    with contextlib.ExitStack() as stack:
        file: Any = None if path != STANDARD_INPUT else sys.stdin.buffer
        try:
            file = file or stack.enter_context(open(path, "rb", _START))
        except OSError as error:
            if os.path.isdir(path):
                kinds.refuse_kind(path, kinds.TABLE)
            is_url = "://" in path
            remedy = "download it, and name the file" if is_url else "name a file"
            what = f"{path}: cannot be read ({error.strerror})"
            if isinstance(error, FileNotFoundError) and not is_url:
                what = f"{path}: does not exist{kinds.similar_path(path, kinds.TABLE)}"
            raise UserError(what, remedy=remedy) from None
        start = file.peek(4)[:4]
        if start[:2] == b"\x1f\x8b":
            file = io.BufferedReader(gzip.GzipFile(fileobj=file))
        elif start == b"\x28\xb5\x2f\xfd" or start[1:] == b"\x2a\x4d\x18":  # a frame to skip
            arrow = import_pyarrow(path)
            stream = arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd")
            file = io.BufferedReader(stack.enter_context(stream))
        elif start.startswith(_NO_TEXT):
            what = (
                "expected text, Parquet or Arrow, got an archive, a spreadsheet or another format"
            )
            raise UserError(f"{name}: {what}", remedy="decompress it, or export it as CSV")
        try:
            yield file
        except (OSError, EOFError, zlib.error) as error:
            what = f"{name}: cannot be read ({shortened(str(error))})"
            raise UserError(what, remedy="fetch it again") from None


def read_lines(file: Any, source: str) -> Iterator[Line]:
    """Yield the lines of a text file, UTF-8, UTF-16 or UTF-32, without line feeds.

    A carriage return stays, unless there are no line feeds. Byte order marks at the start go.
    """
    start = file.peek(_START)
    if kind := _TYPED.get(start[:4]):
        what = f"{source}: expected text, got {kind.capitalize()}"
        raise UserError(what, remedy=f'name its format with `format="{kind}"`')
    encoding = json.detect_encoding(start)
    if encoding not in ("utf-8", "utf-8-sig"):
        try:
            text = file.read().decode(encoding)
        except UnicodeError as error:
            what = f"{source}: expected {encoding.upper()} ({error.args[-1]})"
            raise UserError(what, remedy="save the file as UTF-8") from None
        file = io.BufferedReader(io.BytesIO(text.encode("utf-8", "surrogatepass")))
    while file.peek(3).startswith(codecs.BOM_UTF8):
        file.read(len(codecs.BOM_UTF8))
    is_utf8 = any(not line.isascii() and _is_utf8(line) for line in start.split(b"\n"))
    if b"\r" in start[:-1] and b"\n" not in start:
        file = io.BytesIO(file.read().replace(b"\r", b"\n"))
    for number, data in enumerate(file, start=1):
        try:
            yield number, data.removesuffix(b"\n").decode()
        except UnicodeDecodeError:
            yield number, UserError(_not_utf8(data, is_utf8=is_utf8))


def separator_of(path: str, format: str = "") -> str:
    """Return the separator of a CSV file that spreadsheets know; "," for other inputs."""
    if not os.path.isfile(path) or (format or format_of(path)) != "csv":
        return ","
    with open_input(path) as file:
        separator, _ = find_separator(read_lines(file, path), path)
    return separator if len(separator) == 1 and separator.isprintable() else ","


def _is_utf8(line: bytes) -> bool:
    with contextlib.suppress(UnicodeDecodeError):
        return bool(line.decode())
    return False


def _not_utf8(line: bytes, *, is_utf8: bool) -> str:
    """Say that a line is not UTF-8, and how else it reads. is_utf8: whether other lines are."""
    text = line.decode(errors="backslashreplace")
    good = sum(not sign.isascii() for sign in line.decode(errors="ignore"))
    if is_utf8 or good > line.decode(errors="replace").count("\ufffd"):
        found = re.search(r"\\x[89a-f][0-9a-f]", text)
        wrong = found[0] if found else "a byte"
        near = shortened(text[max(0, found.start() - 15) : found.end() + 15]) if found else ""
        return f"{NOT_UTF8}, as the rest of the file is, got {wrong} in {near!r}"
    readings: dict[str, str] = {}  # what the first words with other letters are
    for name in _ENCODINGS:
        with contextlib.suppress(UnicodeDecodeError):
            if words := _words(line.decode(name)):
                readings.setdefault(words, name)
    if not readings:
        return NOT_UTF8
    likely = sorted(readings, key=_oddities)[:_MOST_ENCODINGS]
    shown = [f"{readings[words]} ({words!r})" for words in likely]
    command = "`iconv -f ENCODING -t UTF-8` converts what you can read here"
    return f"{NOT_UTF8}; it may be {', '.join(shown)}; {command}"


def _oddities(words: str) -> int:
    """Count what words of a language lack: signs, two accents in a row, changes to capitals."""
    signs = sum(unicodedata.category(sign)[0] in "SN" for sign in words if not sign.isascii())
    letters = ((a, b) for a, b in itertools.pairwise(words) if a.isalpha() and b.isalpha())
    changes = (
        _script(a) != _script(b)
        or (a.islower() and b.isupper())
        or (_script(a) == "LATIN" and not a.isascii() and not b.isascii())
        for a, b in letters
    )
    return signs + sum(changes)


def _script(sign: str) -> str:
    name = unicodedata.name(sign, "?").split()[0]
    return "CJK" if name in _JAPANESE else name


def _words(text: str) -> str:
    """Return the first words that are not ASCII; "" where the text is none of a language."""
    others = [sign for sign in text if not sign.isascii()]
    kinds = {unicodedata.category(sign)[0] for sign in others}
    scripts = {_script(sign) for sign in others if sign.isalpha()}
    if "C" in kinds or len(scripts) > 1:
        return ""
    at = next((at for at, sign in enumerate(text) if not sign.isascii()), 0)
    start = max(text.rfind(sign, 0, at) for sign in ' ,;\t|"') + 1
    return shortened(text[start : at + 20].split("\n")[0])


def _cell_rows(rows: Iterator[tuple[int, Cells]], source: str, choose: Choose) -> Rows:
    """Yield the chosen columns of the rows below a header."""
    number, first = next(rows, (0, None))
    if not isinstance(first, list):
        what = f"{source}: expected a header that names the columns, got {first or 'nothing'}"
        raise UserError(what, remedy="give a file with a header, in UTF-8")
    header = [without_unseen(name).strip() for name in first]
    if not header[0] and len(header) > 1:  # as pandas writes an index
        header[0] = next(name for name in ("index", "_index", "qpr_index") if name not in header)
    places = {name: header.index(name) for name in choose(header)}
    if not places:  # the first row is no header
        places = {f"{at}": at for at in range(len(header))}
        rows, header = itertools.chain([(number, first)], rows), []
    names = [without_unseen(name).strip() for name in first] if header else []
    width, repeated = len(first), 0
    for line, row in rows:
        if isinstance(row, str):
            yield line, row
        elif len(row) < width or any(map(str.strip, row[width:])):
            fields = "field" if width == 1 else "fields"
            yield line, f"expected {width} {fields}, as the header, got {len(row)} in {short(row)}"
        elif [without_unseen(cell).strip() for cell in row] == names:
            repeated += 1
        else:
            yield line, {name: row[at] for name, at in places.items()}
    if repeated:
        log.warning("%s: left out rows that repeat the header: %s", source, f"{repeated:,}")


def _line_rows(lines: Iterator[Line], name: str) -> Rows:
    """Yield lines that are not blank as rows of one column."""
    for number, line in lines:
        if isinstance(line, UserError):
            yield number, line.what
        elif line.strip():
            yield number, {name: line.rstrip("\r")}
