"""Pairs of questions with a verdict: whether they mean the same."""

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
_VERDICTS = {"1": True, "0": False, "true": True, "false": False}


class LabeledPairs(NamedTuple):
    """Q distinct questions, pairs of their positions int [P, 2], and `is_duplicate` bool [P]."""

    questions: list[str]
    pairs: np.ndarray
    is_duplicate: np.ndarray


def read_labeled(path: str, *, format: str = "") -> LabeledPairs:
    """The pairs of a file with the columns `question1`, `question2` and `is_duplicate` (0 or 1).

    In a format of `read_questions` with columns, or in that of Quora's pair file, which is known by
    its header. UserError names the line of what cannot be read.
    """
    if is_quora_file(path):
        data = read_quora(path)
        return LabeledPairs(data.questions, data.pairs, data.is_duplicate)
    positions: dict[str, int] = {}
    pairs, verdicts = [], []
    for line, fields in read_rows(path, COLUMNS, format=format):
        got = fields
        if not isinstance(fields, str):
            first, second, label = (fields[name] for name in COLUMNS)
            verdict = _VERDICTS.get(str(label).strip().lower())
            if isinstance(first, str) and isinstance(second, str) and verdict is not None:
                pairs.append(
                    [positions.setdefault(text, len(positions)) for text in (first, second)]
                )
                verdicts.append(verdict)
                continue
            got = f"got {first!r}, {second!r} and {label!r}"
        raise UserError(
            f"{input_name(path)}, line {line}: expected two questions and 0 or 1; {got}"
        )
    if not pairs:
        raise UserError(f"{input_name(path)}: expected labelled pairs, got none")
    return LabeledPairs([*positions], np.array(pairs, np.int64), np.array(verdicts, bool))


def read_duplicates(corpus: str, duplicates: str) -> LabeledPairs:
    """All questions of a corpus, and the pairs of them that are duplicates, as `qpr splits` writes.

    corpus: columns `qid` and `question`. duplicates: columns `qid1` and `qid2`. UserError names the
    line of what cannot be read, or of a question that is not in the corpus.
    """
    positions: dict[int, int] = {}
    questions: list[str] = []
    for entry in read_questions(corpus):
        if entry.id is None or entry.id in positions:
            what = "an id" if entry.id is None else f"an id of its own, got {entry.id} again"
            raise UserError(
                f"{input_name(corpus)}, line {entry.line}: expected {what}; give a file with the header "
                "`qid question`"
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
            f"{input_name(duplicates)}, line {line}: expected two questions of {input_name(corpus)}; {got}"
        )
    if not pairs:
        raise UserError(f"{input_name(duplicates)}: expected pairs of duplicates, got none")
    return LabeledPairs(questions, np.array(pairs, np.int64), np.ones(len(pairs), bool))
