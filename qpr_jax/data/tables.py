"""Questions from files or standard input: lines, TSV, CSV, JSON lines, gzip or zstd, or Parquet."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from qpr_jax.data.quoted_tsv import QUESTIONS, has_header, read_questions_table
from qpr_jax.errors import UserError

FORMATS = ("lines", "tsv", "csv", "jsonl", "parquet")
_OF_SUFFIX = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_COMPRESSED = (".gz", ".zst")
STANDARD_INPUT = "-"
_LONGEST = 1 << 24  # characters of a CSV cell
_REMEDY = "name the column with --column, or another --format"

Fields = dict[str, object]


class Entry(NamedTuple):
    """A question and its id, None where none was given; `line` is where it began."""

    line: int
    id: int | None
    question: str


def read_questions(
    path: str,
    *,
    format: str = "",
    column: str = "question",
    skip_bad_rows: bool = False,
    log: Callable[[str], object] = print,
) -> Iterator[Entry]:
    """The questions of a file, or of standard input where `path` is "-", in their order.

    Args:
      path: gzip and zstd are seen by their first bytes.
      format: "lines" (a question each; blank ones are passed over), "tsv" (a header, no quoting),
        "csv" (a header), "jsonl" (an object a line) or "parquet", the last four with `column` and,
        if there is one, `id`, 0 to 2^63 - 1. Where empty, what the name ends in says, else "lines";
        but a file with the header `qid question` is a table of `data.quoted`, and `qid` is the id.
      skip_bad_rows: pass over rows that cannot be read, and tell `log` how many, where they
        otherwise are a UserError with the line.
    """
    bad = 0
    for line, fields in _question_rows(path, column, format):
        reason, value = fields if isinstance(fields, str) else "", None
        if not isinstance(fields, str):
            question = fields[column]
            if not isinstance(question, str) or not question.strip():
                reason = f"expected a question in `{column}`, got {_short(question)}"
            elif fields.get("id") not in (None, ""):
                value = parse_id(fields["id"])
                if value is None:
                    reason = f"`id`: expected 0 to {2**63 - 1}, got {_short(fields['id'])}"
        if not reason:
            yield Entry(line, value, str(question))
        elif skip_bad_rows:
            bad += 1
        else:
            raise UserError(
                f"{named(path)}, line {line}: {reason}; mend it, or leave such rows out with "
                "--skip-bad-rows"
            )
    if bad:
        log(f"{named(path)}: {bad:,} bad rows left out")


def _question_rows(path: str, column: str, format: str) -> Iterator[tuple[int, Fields | str]]:
    plain = format or path == STANDARD_INPUT or column != QUESTIONS[1]
    if plain or not has_header(path, QUESTIONS):
        yield from read_rows(path, [column], format=format)
        return
    for line, qid, text in read_questions_table(path):
        yield line, text if qid is None else {"id": qid, column: text}


def read_rows(
    path: str, columns: Sequence[str], *, format: str = "", remedy: str = _REMEDY
) -> Iterator[tuple[int, Fields | str]]:
    """Line number and fields of each row, or, of one that cannot be read, the reason.

    Each row has all `columns`. Of the format "lines", the line is the first of them; of "parquet",
    the number is that of the row. remedy: what is said where a column is missing.
    """
    kind = format or kind_of(path) or "lines"
    if kind not in FORMATS:
        raise UserError(f"`--format`: expected one of {', '.join(FORMATS)}, got {format!r}")
    if kind == "lines" and len(columns) > 1:
        raise UserError(
            f"{named(path)}: expected columns {', '.join(columns)}; say --format "
            f"{', '.join(FORMATS[1:-1])} or {FORMATS[-1]}"
        )
    with _opened(path) as file:
        try:
            if kind == "parquet":
                yield from _parquet_rows(file, path, columns, remedy)
            elif kind == "lines":
                for number, line in _lines(file):
                    if line is None:
                        yield number, _NOT_UTF8
                    elif line.strip():
                        yield number, {columns[0]: line}
            elif kind == "jsonl":
                yield from _objects(file, columns)
            else:
                yield from _cells(file, path, columns, kind, remedy)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{named(path)}: not whole gzip ({error}); fetch it again") from None
        except OSError as error:
            raise UserError(
                f"{named(path)}: cannot be read ({_first_line(error)}); fetch it again"
            ) from None


def kind_of(path: str | os.PathLike[str]) -> str:
    """The format that a file's name ends in, compressed or not; empty for another name."""
    base, suffix = os.path.splitext(os.fspath(path).lower())
    if suffix in _COMPRESSED:
        suffix = os.path.splitext(base)[1]
    return _OF_SUFFIX.get(suffix, "")


def parse_id(value: object) -> int | None:
    """An id of a file, None where it is none."""
    value = value.strip() if isinstance(value, str) else value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        value = int(value)
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return value if isinstance(value, int) and good else None


def named(path: str) -> str:
    """The name of an input in a message."""
    return "standard input" if path == STANDARD_INPUT else path


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    with contextlib.ExitStack() as stack:
        if path == STANDARD_INPUT:
            if sys.stdin is None:
                raise UserError("standard input is closed; name a file")
            file: Any = sys.stdin.buffer
        else:
            try:
                file = stack.enter_context(open(path, "rb"))
            except OSError as error:
                reason = error.strerror
                raise UserError(f"{path}: cannot be read ({reason}); name a file") from None
        if not hasattr(file, "peek"):
            file = io.BufferedReader(file)
        start = file.peek(4)[:4]
        if start[:2] == b"\x1f\x8b":
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        elif start == b"\x28\xb5\x2f\xfd" or start[1:] == b"\x2a\x4d\x18":  # a frame to skip
            arrow = _pyarrow(path)
            file = stack.enter_context(
                arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd")
            )
            file = io.BufferedReader(file)
        yield file


def _pyarrow(path: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{named(path)}: Parquet and zstd need one package more; pip install 'qpr_jax[parquet]'"
        ) from None
    return pyarrow


def _parquet_rows(
    file: BinaryIO, path: str, columns: Sequence[str], remedy: str
) -> Iterator[tuple[int, Fields | str]]:
    arrow = _pyarrow(path)
    try:
        table = arrow.parquet.ParquetFile(
            arrow.PythonFile(file, "r") if file.seekable() else arrow.BufferReader(file.read())
        )
        names = table.schema_arrow.names
        _refuse_columns(path, names, columns, remedy)
        wanted = [name for name in dict.fromkeys((*columns, "id")) if name in names]
        number = 0
        for batch in table.iter_batches(columns=wanted):
            try:
                rows: list[Fields | str] = batch.to_pylist()
            except UnicodeDecodeError:
                rows = [_decoded(batch.slice(i, 1)) for i in range(len(batch))]
            for fields in rows:
                number += 1
                yield number, fields
    except arrow.ArrowException as error:
        raise UserError(
            f"{named(path)}: expected Parquet ({_first_line(error)}); fetch it again"
        ) from None


def _decoded(row: Any) -> Fields | str:
    """The fields of an Arrow table of one row, or why there are none."""
    try:
        fields: Fields = row.to_pylist()[0]
        return fields
    except UnicodeDecodeError:
        return _NOT_UTF8


def _refuse_columns(path: str, names: Sequence[str], columns: Sequence[str], remedy: str) -> None:
    """UserError where one of the columns is not there, or several times."""
    for name in (*columns, "id"):
        if (count := names.count(name)) > 1:
            raise UserError(
                f"{named(path)}: expected one column `{name}`, got {count}; rename some"
            )
        if not count and name in columns:
            raise UserError(
                f"{named(path)}: expected a column `{name}`, got {_short(names)}; {remedy}"
            )


_NOT_UTF8 = "expected UTF-8"


def _lines(file: BinaryIO) -> Iterator[tuple[int, str | None]]:
    """Number and text of each line, None for one that is not UTF-8."""
    for number, data in enumerate(file, start=1):
        if number == 1:
            data = data.removeprefix(b"\xef\xbb\xbf")
        try:
            yield number, data.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            yield number, None


def _objects(file: BinaryIO, columns: Sequence[str]) -> Iterator[tuple[int, Fields | str]]:
    for number, line in _lines(file):
        if line is None:
            yield number, _NOT_UTF8
        elif line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"expected a JSON object ({error})"
                continue
            if not isinstance(value, dict):
                yield number, f"expected a JSON object, got {_short(value)}"
            elif missing := [name for name in columns if name not in value]:
                yield number, f"expected the key `{missing[0]}`, got {_short(sorted(value))}"
            else:
                yield number, value


def _cells(
    file: BinaryIO, path: str, columns: Sequence[str], kind: str, remedy: str
) -> Iterator[tuple[int, Fields | str]]:
    read = broken = 0

    def text() -> Iterator[str]:
        nonlocal read, broken
        for number, line in _lines(file):
            read = number
            if line is None:
                broken = number
            yield f"{line or ''}\n"

    csv.field_size_limit(_LONGEST)
    if kind == "tsv":
        rows: Iterator[list[str]] = (line.removesuffix("\n").split("\t") for line in text())
    else:
        rows = csv.reader(text(), strict=True)
    header: list[str] | None = None
    while True:
        start = read + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            if "end of data" in str(error):  # else all that follows would count as one row
                raise UserError(
                    f"{named(path)}, line {start}: not CSV (a quote is not closed); mend it"
                ) from None
            yield start, f"not CSV ({error}), up to line {read}"
            continue
        if row is None:
            break
        if header is None:
            header = [name.strip() for name in row]
            _refuse_columns(path, header, columns, remedy)
        elif broken >= start:
            yield start, _NOT_UTF8
        elif len(row) != len(header):
            if row not in ([], [""]):
                yield start, f"expected {len(header)} fields, as the header, got {len(row)}"
        else:
            yield start, dict(zip(header, row, strict=True))
    if header is None:
        raise UserError(f"{named(path)}: expected a header with `{columns[0]}`, got nothing")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
