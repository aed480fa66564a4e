"""Labeled pairs of questions for training: Quora's pair file, or any table with its columns."""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qpr_jax.data.columns import Fields, is_missing
from qpr_jax.data.decoding import input_name, short
from qpr_jax.data.tables import format_of, read_rows
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import Id, cell_id

log = logging.getLogger("qpr_jax")

COLUMNS = ("question1", "question2", "is_duplicate")
IDS = ("qid1", "qid2")
PAIRS_HEADER = (*IDS, *COLUMNS)  # of the pair files that `qpr splits` writes
HEADER = ("id", *PAIRS_HEADER)  # of Quora's file
_LABELS = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}

Row = tuple[int, int, str, str, bool]  # qid1, qid2, question1, question2, is_duplicate


@dataclass(frozen=True)
class QuestionPairs:
    """Distinct questions, in order of first appearance, and their labeled pairs.

    Attributes:
      questions: Q texts.
      ids: int64 [Q].
      pairs: int32 [P, 2], positions of questions, for each good row that pairs two questions.
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


def parse_label(cell: object) -> bool | None:
    """Parse a label, 0 or 1, true or false; None for anything else."""
    return _LABELS.get(str(cell).strip().lower())


def read_question_pairs(
    path: StrPath, *, format: str = "", skip_bad_rows: bool = False, max_rows: int = 0
) -> QuestionPairs:
    """Read a file with the columns question1, question2 and is_duplicate, such as Quora's.

    A question's id is the one in `qid1` or `qid2`, if the file has these columns and they hold
    whole numbers; else questions are numbered by first appearance.

    Args:
      path: of a file in a format of `data.tables`, or "-".
      format: if empty, the suffix of the file's name decides, else "tsv".
      skip_bad_rows: count bad rows and leave them out; else the first is a UserError with its line.
      max_rows: stop after so many good rows; 0: read all.
    """
    name = input_name(str(path))
    if max_rows < 0:
        raise UserError(f"expected 0 (all) or more, got {max_rows}", setting="max_rows")

    def choose(names: Sequence[str]) -> list[str]:
        for column in COLUMNS:
            if column not in names:
                what = f"expected the columns {', '.join(COLUMNS)}, got {short([*names])}"
                remedy = "name its columns so, or another format with `--format`"
                raise UserError(f"{name}: {what}", remedy=remedy)
        return [*COLUMNS, *(IDS if {*IDS} <= {*names} else ())]

    rows: list[tuple[Id, Id, str, str, bool]] = []
    skipped = 0
    for line, fields in read_rows(str(path), choose, format=_format(path, format)):
        row = fields if isinstance(fields, str) else _parse(fields)
        if not isinstance(row, str):
            rows.append(row)
        elif skip_bad_rows:
            skipped += 1
        else:
            remedy = "correct it, or skip bad rows with `--skip-bad-rows`"
            raise UserError(f"{name}, line {line}: {row}", remedy=remedy)
        if len(rows) == max_rows > 0:
            break
    if not rows:
        what = f"{name}: expected rows of question pairs, got no good row and {skipped} bad ones"
        raise UserError(what, remedy="give a file with pairs")
    data = gather_pairs(_numbered(rows, name))
    data.report["skipped_rows"] = skipped
    return data


def pair_columns(path: str, *, format: str = "") -> list[str]:
    """Return the columns of a file of labeled pairs without its rows; [] for any other input."""
    found: list[str] = []

    def choose(names: Sequence[str]) -> Sequence[str]:
        found.extend(names)
        return names

    if pathlib.Path(path).is_file():  # a pipe can be read only once
        with contextlib.suppress(UserError):
            _, fields = next(read_rows(path, choose, format=_format(path, format)), (0, ""))
            found = found if isinstance(fields, str) else [*fields]
    return found if {*COLUMNS} <= {*found} else []


def _format(path: StrPath, format: str) -> str:
    return format or format_of(path) or "tsv"


def _parse(fields: Fields) -> tuple[Id, Id, str, str, bool] | str:
    """Ids, texts and label of a row, or what is wrong with it."""
    parsed = parse_texts(fields)
    if isinstance(parsed, str):
        return parsed
    ids: list[Id] = []
    for key, text in zip(IDS, parsed[:2], strict=True):
        value = fields.get(key)
        if is_missing(value) or not str(value).strip():  # questions then differ by their text
            ids.append("=" + text)
        else:
            known = value if type(value) is int else cell_id(f"{value}")
            ids.append("" if known is None else known)
    return ids[0], ids[1], *parsed


def parse_texts(fields: Fields) -> tuple[str, str, bool] | str:
    """Return the texts and the label of a row, or what is wrong with it."""
    for name in COLUMNS:
        if name not in fields:
            return f"expected `{name}`, got {short(sorted(fields))}"
    first, second, cell = ("" if is_missing(fields[name]) else fields[name] for name in COLUMNS)
    for name, text in zip(COLUMNS, (first, second), strict=False):
        if not isinstance(text, str):
            return f"expected a question in `{name}`, got {short(text)}"
    label = parse_label(cell)
    if label is None:
        return f"expected `{COLUMNS[2]}` 0 or 1, got {short(cell)}"
    return str(first), str(second), label


def _numbered(rows: list[tuple[Id, Id, str, str, bool]], source: str) -> list[Row]:
    """The rows with whole numbers as ids: their own if all are, else by first appearance."""
    ids = dict.fromkeys(value for row in rows for value in row[:2])
    known: dict[Id, int] = {value: value for value in ids if isinstance(value, int)}
    number = known
    if len(known) < len(ids):
        number = {value: i for i, value in enumerate(ids)}
        if any(not str(value).startswith("=") for value in ids):
            text = "%s: not all ids are whole numbers; questions are numbered from 0 instead"
            log.warning(text, source)
    return [(number[a], number[b], first, second, label) for a, b, first, second, label in rows]


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
