"""Logs of questions and answers: one file, many or a folder, in any format of `data.questions`."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qpr_jax.data.tables import format_of, read_rows
from qpr_jax.distant.method import LogRow, log_row
from qpr_jax.errors import UserError

_REMEDY = "name the columns with --question and --answer (training: `data.question`, `data.answer`)"
WHOLE_FILE = 0  # the line of what is wrong with a file as a whole


@dataclass(frozen=True)
class Logs:
    """What is read: files, the names of the two columns, and a format, "" for what names say."""

    files: tuple[str, ...]
    question: str = "question"
    answer: str = "answer"
    format: str = ""


class BadRow(NamedTuple):
    """A row that cannot be read, and why; or, of line WHOLE_FILE, a file."""

    line: int
    reason: str


def log_files(paths: Sequence[str], *, format: str = "") -> tuple[str, ...]:
    """The files named, and those of the folders named whose names end in a known format.

    Where a format is given, all files of the folders but hidden ones.
    """
    files: list[str] = []
    for path in paths:
        if not path:
            raise UserError("expected files of logs, got an empty name; name a file or a folder")
        if not os.path.isdir(path):
            files.append(path)
            continue
        found = sorted(
            str(file)
            for file in pathlib.Path(path).rglob("*")
            if file.is_file() and (format_of(file) or (format and file.name[0] not in "._"))
        )
        if not found:
            raise UserError(
                f"{path}: expected a folder with logs (.jsonl, .csv, .tsv, .parquet, also .gz and "
                ".zst), found none; name its files, or say what they are with `--format`"
            )
        files += found
    if not files:
        raise UserError("expected files of logs, got none")
    return tuple(files)


def read_log(logs: Logs, file: str) -> Iterator[LogRow | BadRow]:
    """The rows of one of the files, good and bad; what ends the reading is the last of them."""
    columns = [logs.question, logs.answer]
    try:
        for line, fields in read_rows(file, columns, format=logs.format, remedy=_REMEDY):
            if isinstance(fields, str):
                yield BadRow(line, fields)
                continue
            question, answer = (fields[name] for name in columns)
            if not isinstance(question, str) or not isinstance(answer, str):
                what = "question" if not isinstance(question, str) else "answer"
                name = columns[what == "answer"]
                yield BadRow(line, f"expected text in `{name}`, got {fields[name]!r:.60}")
                continue
            try:
                yield log_row(question, answer)
            except ValueError as error:
                yield BadRow(line, str(error))
    except UserError as error:
        yield BadRow(WHOLE_FILE, str(error))


def refusal(file: str, bad: BadRow) -> UserError:
    """What is said of a bad row."""
    if bad.line == WHOLE_FILE:
        return UserError(bad.reason)
    return UserError(
        f"{file}, line {bad.line}: {bad.reason}; mend it, name the columns with --question and "
        "--answer, or leave such rows out with --skip-bad-rows (training: `data.question`, "
        "`data.answer`, `data.skip_bad_rows`)"
    )
