"""Labeled pairs: two questions, and whether they mean the same."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qpr_jax.data.questions import read_questions
from qpr_jax.data.quora import is_quora_file, read_quora
from qpr_jax.data.tables import input_name, read_values
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

    def parse(first: object, second: object, cell: object) -> tuple[int, int, bool] | None:
        label = _LABELS.get(str(cell).strip().lower())
        if not isinstance(first, str) or not isinstance(second, str) or label is None:
            return None
        a, b = (positions.setdefault(text, len(positions)) for text in (first, second))
        return a, b, label

    expected = "two questions and 0 or 1"
    rows = [row for _, row in read_values(path, COLUMNS, parse, expected=expected, format=format)]
    if not rows:
        raise UserError(f"{input_name(path)}: expected labeled pairs, got none")
    pairs, labels = np.split(np.array(rows, np.int64), [2], axis=1)
    return LabeledPairs([*positions], pairs, labels[:, 0] == 1)


def read_duplicates(corpus: str, duplicates: str) -> LabeledPairs:
    """Read all questions of a corpus and their pairs of duplicates, as `qpr splits` writes them.

    The files have the columns `qid` and `question`, and `qid1` and `qid2`. A UserError names the
    line of a row that cannot be read, or that has a question outside the corpus.
    """
    positions: dict[int, int] = {}
    questions: list[str] = []
    for entry in read_questions(corpus):
        if entry.id is None or entry.id in positions:
            what = "an id" if entry.id is None else f"an id of its own, got {entry.id} again"
            what = f"{input_name(corpus)}, line {entry.line}: expected {what}"
            raise UserError(what, remedy="give a file with the header `qid question`")
        positions[entry.id] = len(questions)
        questions.append(entry.question)

    def parse(*cells: object) -> list[int] | None:
        found = [positions[i] for i in map(parse_id, cells) if i in positions]
        return found if len(set(found)) == len(DUPLICATES) else None

    rows = read_values(
        *(duplicates, DUPLICATES, parse),
        expected=f"two questions of {input_name(corpus)}",
        remedy="give all pairs of duplicates",
    )
    pairs = [pair for _, pair in rows]
    if not pairs:
        raise UserError(f"{input_name(duplicates)}: expected pairs of duplicates, got none")
    return LabeledPairs(questions, np.array(pairs, np.int64), np.ones(len(pairs), bool))
