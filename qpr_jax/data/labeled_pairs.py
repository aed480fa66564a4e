"""Labeled pairs: two questions, and whether they mean the same."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qpr_jax.data.questions import read_questions
from qpr_jax.data.quora import is_quora_file, read_quora
from qpr_jax.data.tables import input_name, read_rows
from qpr_jax.errors import UserError
from qpr_jax.ids import parse_id

COLUMNS = ("question1", "question2", "is_duplicate")
DUPLICATES = ("qid1", "qid2")
_LABELS = {"1": True, "0": False, "true": True, "false": False}


class LabeledPairs(NamedTuple):
    """Distinct questions and labeled pairs of them.

    Attributes:
      questions: Q texts.
      pairs: int64 [P, 2], positions of questions.
      is_duplicate: bool [P].
    """

    questions: list[str]
    pairs: np.ndarray
    is_duplicate: np.ndarray


def read_labeled(path: str, *, format: str = "") -> LabeledPairs:
    """Read a file with the columns `question1`, `question2` and `is_duplicate` (0 or 1).

    The file has a format of `read_questions` with columns, or that of Quora's pair file, which its
    header shows. A UserError names the line of a row that cannot be read.
    """
    if is_quora_file(path):
        data = read_quora(path)
        return LabeledPairs(data.questions, data.pairs, data.is_duplicate)
    positions: dict[str, int] = {}
    pairs, labels = [], []
    for line, fields in read_rows(path, COLUMNS, format=format):
        got = fields
        if not isinstance(fields, str):
            first, second, cell = (fields[name] for name in COLUMNS)
            label = _LABELS.get(str(cell).strip().lower())
            if isinstance(first, str) and isinstance(second, str) and label is not None:
                pairs.append(
                    [positions.setdefault(text, len(positions)) for text in (first, second)]
                )
                labels.append(label)
                continue
            got = f"got {first!r}, {second!r} and {cell!r}"
        raise UserError(
            f"{input_name(path)}, line {line}: expected two questions and 0 or 1; {got}"
        )
    if not pairs:
        raise UserError(f"{input_name(path)}: expected labeled pairs, got none")
    return LabeledPairs([*positions], np.array(pairs, np.int64), np.array(labels, bool))


def read_duplicates(corpus: str, duplicates: str) -> LabeledPairs:
    """Read all questions of a corpus and their pairs of duplicates, as `qpr splits` writes them.

    A UserError names the line of a row that cannot be read, or that has a question outside the
    corpus.

    Args:
      corpus: a file with the columns `qid` and `question`.
      duplicates: a file with the columns `qid1` and `qid2`.
    """
    positions: dict[int, int] = {}
    questions: list[str] = []
    for entry in read_questions(corpus):
        if entry.id is None or entry.id in positions:
            what = "an id" if entry.id is None else f"an id of its own, got {entry.id} again"
            raise UserError(
                f"{input_name(corpus)}, line {entry.line}: expected {what}",
                remedy="give a file with the header `qid question`",
            )
        positions[entry.id] = len(questions)
        questions.append(entry.question)
    pairs = []
    for line, fields in read_rows(duplicates, DUPLICATES, remedy="give all pairs of duplicates"):
        got = fields
        if not isinstance(fields, str):
            ids = [parse_id(fields[name]) for name in DUPLICATES]
            found = [positions[i] for i in ids if i in positions]
            if len(set(found)) == len(DUPLICATES):
                pairs.append(found)
                continue
            got = f"got {[*fields.values()]!r:.60}"
        raise UserError(
            f"{input_name(duplicates)}, line {line}: expected two questions of "
            f"{input_name(corpus)}; {got}"
        )
    if not pairs:
        raise UserError(f"{input_name(duplicates)}: expected pairs of duplicates, got none")
    return LabeledPairs(questions, np.array(pairs, np.int64), np.ones(len(pairs), bool))
