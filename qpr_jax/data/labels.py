"""Labeled pairs to score by, verdicts of a person, and labels added to a training split."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.data.clusters import connect, transitive_clusters
from qpr_jax.data.columns import Fields, is_missing
from qpr_jax.data.decoding import input_name, short
from qpr_jax.data.pairs import COLUMNS, QuestionPairs, parse_texts, read_question_pairs
from qpr_jax.data.splits import TRAIN, Splits, collect_splits
from qpr_jax.data.tables import read_rows
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text

SCORE, WEIGHT, CALIBRATION = "score", "weight", "calibration"


class LabeledPairs(NamedTuple):
    """Distinct questions and labeled pairs of them.

    Attributes:
      questions: Q texts.
      pairs: int [P, 2], positions of questions.
      is_duplicate: bool [P].
    """

    questions: list[str]
    pairs: np.ndarray
    is_duplicate: np.ndarray


class Verdicts(NamedTuple):
    """Verdicts on pairs that were found: labeled pairs with the scores by which they were found.

    Attributes:
      labeled: P pairs with their labels.
      scores: float64 [P], probabilities; None if a pair has none.
      weights: float64 [P], how many found pairs each verdict stands for; 1 by default.
      scored_by: name of the calibration of the scores; "" if unknown.
    """

    labeled: LabeledPairs
    scores: np.ndarray | None
    weights: np.ndarray
    scored_by: str = ""


def read_labeled(path: str, *, format: str = "") -> LabeledPairs:
    """Read a file of labeled pairs; see `data.pairs.read_question_pairs`."""
    data = read_question_pairs(path, format=format)
    return LabeledPairs(data.questions, data.pairs.astype(np.int64), data.is_duplicate)


def read_verdicts(path: str, *, format: str = "") -> Verdicts:
    """Read a file with the columns of labeled pairs, maybe `score`, `weight` and `calibration`.

    A UserError names the line of a row that cannot be read.
    """
    name, positions = input_name(path), dict[str, int]()
    rows: list[tuple[int, int, bool]] = []
    numbers: list[tuple[float, float]] = []
    calibrations: set[str] = set()

    def choose(names: Sequence[str]) -> list[str]:
        if missing := [column for column in COLUMNS if column not in names]:
            what = f"{name}: expected a column `{missing[0]}`, got {short([*names])}"
            raise UserError(what, remedy="name its columns so, or another format with `--format`")
        return [*COLUMNS, *(column for column in (SCORE, WEIGHT, CALIBRATION) if column in names)]

    for line, fields in read_rows(path, choose, format=format):
        parsed = fields if isinstance(fields, str) else _parse_verdict(fields)
        if isinstance(parsed, str):
            raise UserError(f"{name}, line {line}: {parsed}", remedy="correct the line")
        first, second, label, score, weight, calibration = parsed
        a, b = (positions.setdefault(text, len(positions)) for text in (first, second))
        rows.append((a, b, label))
        numbers.append((score, weight))
        calibrations.add(calibration)
    if not rows:
        raise UserError(f"{name}: expected verdicts, got none")
    if len(calibrations) > 1:
        what = f"{name}: expected scores of one `{CALIBRATION}`, got {short(sorted(calibrations))}"
        raise UserError(what, remedy="keep the verdicts of one review")
    pairs, labels = np.split(np.array(rows, np.int64), [2], axis=1)
    scores, weights = np.array(numbers).T
    labeled = LabeledPairs([*positions], pairs, labels[:, 0] == 1)
    return Verdicts(labeled, None if np.isnan(scores).any() else scores, weights, *calibrations)


def _parse_verdict(fields: Fields) -> tuple[str, str, bool, float, float, str] | str:
    """Texts, label, score (NaN for none), weight and calibration, or what is wrong."""
    texts = parse_texts(fields)
    if isinstance(texts, str):
        return texts
    score = _number(fields.get(SCORE), math.nan)
    if score is None or not (math.isnan(score) or 0 <= score <= 1):
        return f"expected `{SCORE}`, a probability, got {short(fields.get(SCORE))}"
    weight = _number(fields.get(WEIGHT), 1.0)
    if weight is None or not 0 < weight < math.inf:
        return f"expected `{WEIGHT}`, a number above 0, got {short(fields.get(WEIGHT))}"
    cell = fields.get(CALIBRATION)
    return *texts, score, weight, "" if is_missing(cell) else str(cell)


def _number(cell: object, default: float) -> float | None:
    """Parse the number of a cell; the default for a missing one, None for anything else."""
    if is_missing(cell) or not str(cell).strip():
        return default
    try:
        return float(str(cell))
    except ValueError:
        return None


def add_labels(
    data: QuestionPairs, splits: Splits, labels: LabeledPairs
) -> tuple[QuestionPairs, np.ndarray, Splits]:
    """Add labeled pairs to the training split, and leave the held-out splits as they are.

    Questions that the data lack are appended, for training. A pair with a held-out question, by its
    normalized text, is left out: an encoder may not learn what it is scored by. A label replaces
    the data's own for the same pair, and pairs labeled non-duplicates are in no cluster together:
    of duplicates that would join them, the last ones of the data are left out.

    Returns:
      The data, with counts in its report: `added_labels`, `held_out_labels` (left out), and
      `overruled_duplicates` (left out of the clusters); clusters int32 [Q]; and the splits.
    """
    held_out = np.flatnonzero(splits.split_of != TRAIN)
    kept_out = {normalized_text(data.questions[i]) for i in held_out}
    is_out = np.array([normalized_text(text) in kept_out for text in labels.questions], np.bool_)
    trained = ~is_out[labels.pairs].any(axis=1)

    known = {text: i for i, text in enumerate(data.questions)}
    # Only questions of a pair that is added, in the order of their texts in `labels`.
    used = np.unique(labels.pairs[trained])
    rows = np.full(len(labels.questions), -1, np.int64)
    for i in used.tolist():
        rows[i] = known.setdefault(labels.questions[i], len(known))
    pairs = rows[labels.pairs[trained]].astype(np.int32).reshape(-1, 2)
    different = pairs[:, 0] != pairs[:, 1]
    pairs, is_duplicate = pairs[different], labels.is_duplicate[trained][different]

    own = ~np.isin(_keys(data.pairs, len(known)), _keys(pairs, len(known)))
    all_pairs = np.concatenate([pairs, data.pairs[own]])  # the labels first: they win
    all_labels = np.concatenate([is_duplicate, data.is_duplicate[own]])
    duplicates = all_pairs[all_labels]
    joined = join_apart(len(known), duplicates, pairs[~is_duplicate])
    more = len(known) - len(data.questions)
    report = data.report | {
        "added_labels": len(pairs),
        "held_out_labels": int((~trained).sum()),
        "overruled_duplicates": int((~joined).sum()),
    }
    ids = np.concatenate([data.ids, data.ids.max(initial=-1) + 1 + np.arange(more)])
    added = QuestionPairs([*known], ids, all_pairs, all_labels, report)
    split_of = np.concatenate([splits.split_of, np.full(more, TRAIN, splits.split_of.dtype)])
    clusters = transitive_clusters(len(known), duplicates[joined])
    found = collect_splits(added, clusters, split_of)
    # The held-out pairs in their old order, so that scores are of the same pairs.
    pairs_of = splits.pairs | {"train": found.pairs["train"]}
    non_duplicates = splits.non_duplicates | {"train": found.non_duplicates["train"]}
    return added, clusters, Splits(split_of, pairs_of, non_duplicates)


def join_apart(count: int, duplicates: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """Which duplicates, int [P, 2], to join so that no pair of `apart` is joined: bool [P].

    They are joined in their order; one that would join a pair of `apart` is left out.
    """
    components = connect(count, duplicates)
    ends = components[apart]
    wrong = np.unique(ends[ends[:, 0] == ends[:, 1], 0])
    kept = np.ones(len(duplicates), np.bool_)
    if not len(wrong):
        return kept
    root: dict[int, int] = {}

    def find(node: int) -> int:
        while (above := root.setdefault(node, node)) != node:
            root[node] = root[above]
            node = above
        return node

    foes: dict[int, set[int]] = collections.defaultdict(set)
    for a, b in apart[np.isin(ends[:, 0], wrong)].tolist():
        foes[a].add(b)
        foes[b].add(a)
    for row in np.flatnonzero(np.isin(components[duplicates[:, 0]], wrong)).tolist():
        a, b = map(find, duplicates[row].tolist())
        if b in foes[a]:
            kept[row] = False
        elif a != b:
            root[b] = a
            for foe in foes.pop(b, ()):
                foes[foe].discard(b)
                foes[foe].add(a)
                foes[a].add(foe)
    return kept


def _keys(pairs: np.ndarray, count: int) -> np.ndarray:
    """A number for each pair, whichever question comes first: int64 [P]."""
    low, high = pairs.min(axis=1), pairs.max(axis=1)
    return low.astype(np.int64) * count + high
