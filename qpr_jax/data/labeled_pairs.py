"""Labeled pairs: two questions, and whether they mean the same."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qpr_jax.data.columns import is_missing
from qpr_jax.data.pairs import COLUMNS, IDS, pair_columns, parse_label
from qpr_jax.data.questions import read_questions
from qpr_jax.data.quora import is_quora_file, read_quora
from qpr_jax.data.tables import input_name, read_values
from qpr_jax.errors import UserError
from qpr_jax.ids import Id, id_key, parse_key


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
        texts = ["" if is_missing(text) else text for text in (first, second)]
        label = parse_label(cell)
        if label is None or not all(isinstance(text, str) for text in texts):
            return None
        a, b = (positions.setdefault(str(text), len(positions)) for text in texts)
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
    if pair_columns(duplicates):
        raise UserError(
            f"{input_name(duplicates)}: expected pairs of duplicates alone, got labeled pairs",
            remedy="keep the rows of duplicates, with the columns qid1 and qid2",
        )
    positions: dict[Id, int] = {}  # by `id_key`
    questions: list[str] = []
    for entry in read_questions(corpus):
        key = None if entry.id is None else id_key(entry.id)
        if key is None or key in positions:
            what = "an id" if entry.id is None else f"an id of its own, got {entry.id} again"
            what = f"{input_name(corpus)}, line {entry.line}: expected {what}"
            raise UserError(what, remedy="give a file with the header `qid question`")
        positions[key] = len(questions)
        questions.append(entry.question)

    def parse(*cells: object) -> list[int] | None:
        found = [positions[i] for i in map(parse_key, cells) if i in positions]
        return found if len(set(found)) == len(IDS) else None

    rows = read_values(
        *(duplicates, IDS, parse),
        expected=f"two questions of {input_name(corpus)}",
        remedy="give all pairs of duplicates",
    )
    pairs = [pair for _, pair in rows]
    if not pairs:
        raise UserError(f"{input_name(duplicates)}: expected pairs of duplicates, got none")
    return LabeledPairs(questions, np.array(pairs, np.int64), np.ones(len(pairs), bool))
