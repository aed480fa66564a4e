"""Quora's pair file: tab-separated, quoted as CSV, with a labeled pair of questions in each row."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from qpr_jax.data import quoted_tsv
from qpr_jax.data.quoted_tsv import check_utf8, has_header, parse_qid, short
from qpr_jax.data.tables import STANDARD_INPUT
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath

HEADER = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
PAIRS_HEADER = HEADER[1:]  # of the pair files that `qpr splits` writes

_REMEDY = "name another file with `data.path`"

R = TypeVar("R")
Row = tuple[int, int, str, str, bool]  # qid1, qid2, question1, question2, is_duplicate


@dataclass(frozen=True)
class QuestionPairs:
    """The distinct questions, in order of first appearance, and their labeled pairs.

    Attributes:
      questions: Q texts.
      ids: int64 [Q].
      pairs: int32 [P, 2], positions of questions, for each good row; without the rows that pair a
        question with itself.
      is_duplicate: bool [P].
      report: counts: `rows` (good ones), `skipped_rows` (bad ones), `same_text_ids` (ids left out,
        since an earlier id has their text), `changed_texts` (ids with several texts, of which the
        first that is not blank is kept), `self_pairs` (rows that pair a question with itself).
    """

    questions: list[str]
    ids: np.ndarray
    pairs: np.ndarray
    is_duplicate: np.ndarray
    report: dict[str, int]


def read_quora(path: StrPath, *, skip_bad_rows: bool = False, max_rows: int = 0) -> QuestionPairs:
    """Read a file in the format of Quora's `quora_duplicate_questions.tsv`, with or without `id`.

    Stops after `max_rows` good rows, if not 0. The first bad row is a UserError with the line where
    it starts, unless `skip_bad_rows`, which counts them.
    """
    rows, skipped = collect_rows(
        _numbered_rows(path), str(path), skip_bad_rows=skip_bad_rows, max_rows=max_rows
    )
    if not rows:
        expected = "expected rows of question pairs below the header"
        raise UserError(
            f"{path}: {expected}, got no good row and {skipped} bad ones", remedy=_REMEDY
        )
    data = gather_pairs(rows)
    data.report["skipped_rows"] = skipped
    return data


def collect_rows(
    rows: Iterable[tuple[int, R | str]], source: str, *, skip_bad_rows: bool, max_rows: int
) -> tuple[list[R], int]:
    """The first `max_rows` good rows (0: all), and how many bad ones were skipped.

    Takes (line, row, or what is wrong with it); other arguments and errors as of `read_quora`.
    """
    if max_rows < 0:
        raise UserError(f"expected 0 (all) or more, got {max_rows}", setting="max_rows")
    good: list[R] = []
    skipped = 0
    for line, row in rows:
        if not isinstance(row, str):
            good.append(row)
        elif skip_bad_rows:
            skipped += 1
        else:
            what = f"{source}, line {line}: {row}"
            raise UserError(what, remedy="correct it, or skip bad rows with `--skip-bad-rows`")
        if len(good) == max_rows > 0:
            break
    return good, skipped


def is_quora_file(path: StrPath) -> bool:
    """Whether the header of a file is one that `read_quora` reads."""
    headers = (HEADER, PAIRS_HEADER)
    return path != STANDARD_INPUT and any(has_header(path, header) for header in headers)


def gather_pairs(rows: Iterable[Row]) -> QuestionPairs:
    """Number the questions of `rows` by first appearance; equal texts are one question."""
    rows = list(rows)
    text_of: dict[int, str] = {}
    changed: set[int] = set()
    for id1, id2, text1, text2, _ in rows:
        for identity, text in ((id1, text1), (id2, text2)):
            known = text_of.setdefault(identity, text)
            if known != text:
                changed.add(identity)
                if not known.strip():
                    text_of[identity] = text
    questions: dict[str, int] = {}
    ids: list[int] = []
    position: dict[int, int] = {}
    for identity, text in text_of.items():
        at = position[identity] = questions.setdefault(text, len(questions))
        if at == len(ids):
            ids.append(identity)
    pairs = np.array([(position[a], position[b]) for a, b, *_ in rows], np.int32).reshape(-1, 2)
    kept = pairs[:, 0] != pairs[:, 1]
    report = {
        "rows": len(rows),
        "skipped_rows": 0,
        "same_text_ids": len(position) - len(ids),
        "changed_texts": len(changed),
        "self_pairs": int((~kept).sum()),
    }
    labels = np.array([row[-1] for row in rows], np.bool_)
    return QuestionPairs([*questions], np.array(ids, np.int64), pairs[kept], labels[kept], report)


def _read_lines(path: StrPath) -> list[str]:
    try:
        data = pathlib.Path(path).read_bytes()
    except OSError as error:
        what = f"{path}: expected a file of question pairs, got: {error.strerror}"
        raise UserError(what, remedy=_REMEDY) from error
    if not data:
        what = f"{path}: expected a file of question pairs, got an empty file"
        raise UserError(what, remedy=_REMEDY)
    return quoted_tsv.decode_lines(data)


def _check_header(path: StrPath, lines: list[str]) -> tuple[list[str], int]:
    """The header, and the index of the first line below it."""
    try:
        fields, body = quoted_tsv.split_row(lines, 0)
    except ValueError:
        fields, body = [], 1
    if fields not in (HEADER, PAIRS_HEADER):
        expected = f"the header {' '.join(HEADER)!r} with tabs between"
        what = f"{path}, line 1: expected {expected}, got {short(lines[0])}"
        raise UserError(what, remedy="give a file in the format of Quora's pair file")
    return fields, body


def _numbered_rows(path: StrPath) -> Iterator[tuple[int, Row | str]]:
    """Yield, for each row, the number of its first line and the row, or what is wrong with it."""
    lines = _read_lines(path)
    header, start = _check_header(path, lines)
    # Without `id`, a line of a question may begin like a row; then the quotes alone end a row.
    row_start = _ROW_START if header == HEADER else None
    for at, fields in quoted_tsv.parse_rows(lines, start, len(header), row_start=row_start):
        try:
            yield at + 1, fields if isinstance(fields, str) else _parse_fields(header, fields)
        except ValueError as error:
            yield at + 1, str(error)


def _parse_fields(header: list[str], fields: list[str]) -> Row:
    for name, text in zip(header[: -len(PAIRS_HEADER)], fields, strict=False):
        parse_qid(name, text)
    id1, id2, text1, text2, label = fields[-len(PAIRS_HEADER) :]
    first, second = parse_qid("qid1", id1), parse_qid("qid2", id2)
    if label != "0" and label != "1":
        raise ValueError(f"expected `is_duplicate` 0 or 1, got {short(label)}")
    check_utf8("question1", text1)
    check_utf8("question2", text2)
    return first, second, text1, text2, label == "1"


_ROW_START = re.compile(r"\d+\t\d+\t\d+\t")
