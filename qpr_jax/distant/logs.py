"""Logs of questions and answers: files or folders, in any format of `data.tables`."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qpr_jax.data.tables import format_of, read_rows
from qpr_jax.distant.method import LogRow, log_row
from qpr_jax.errors import UserError

_REMEDY = "name the columns with `qpr clusters --question --answer`"
WHOLE_FILE = 0  # the `BadRow.line` of an error of the whole file


@dataclass(frozen=True)
class Logs:
    """Files, the names of their two columns, and their format; "" takes it from their names."""

    files: tuple[str, ...]
    question_column: str = "question"
    answer_column: str = "answer"
    format: str = ""


class BadRow(NamedTuple):
    """A row that cannot be read, or the whole file if `line` is WHOLE_FILE; and why."""

    line: int
    reason: str
    remedy: str = ""


def log_files(paths: Sequence[str], *, format: str = "") -> tuple[str, ...]:
    """Return the files among `paths`, and the files of a known format in the folders among them.

    With `format`, all files of the folders but hidden ones.
    """
    files: list[str] = []
    for path in paths:
        if not path:
            raise UserError("expected files, got an empty name", remedy="name a file or a folder")
        if not os.path.isdir(path):
            files.append(path)
            continue
        inside = filter(pathlib.Path.is_file, pathlib.Path(path).rglob("*"))
        found = sorted(str(f) for f in inside if format_of(f) or (format and f.name[0] not in "._"))
        if not found:
            raise UserError(
                f"{path}: expected a folder with logs (.jsonl, .csv, .tsv, .parquet, also .gz and "
                ".zst), found none",
                remedy="name its files, or give their format with `--format`",
            )
        files += found
    if not files:
        raise UserError("expected files of logs, got none")
    return tuple(files)


def read_log(logs: Logs, file: str) -> Iterator[LogRow | BadRow]:
    """Yield the rows of a file, good and bad; an error of the whole file is the last one."""
    columns = [logs.question_column, logs.answer_column]
    try:
        for line, fields in read_rows(file, columns, format=logs.format, remedy=_REMEDY):
            if isinstance(fields, str):
                yield BadRow(line, fields)
                continue
            if bad := [name for name in columns if not isinstance(fields[name], str)]:
                yield BadRow(line, f"expected text in `{bad[0]}`, got {fields[bad[0]]!r:.60}")
                continue
            try:
                yield log_row(*(str(fields[name]) for name in columns))
            except ValueError as error:
                yield BadRow(line, str(error))
    except UserError as error:
        yield BadRow(WHOLE_FILE, error.what, error.remedy)


def bad_row_error(file: str, bad: BadRow) -> UserError:
    """Return the error of a bad row."""
    if bad.line == WHOLE_FILE:
        return UserError(bad.reason, remedy=bad.remedy)
    return UserError(
        f"{file}, line {bad.line}: {bad.reason}",
        remedy="correct the line, name the columns with `qpr clusters --question --answer`, or "
        "leave such rows out with `--skip-bad-rows`",
    )
