"""Verdicts on found pairs: labeled pairs with the score by which they were found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.data.columns import is_missing
from qpr_jax.data.labeled_pairs import LabeledPairs
from qpr_jax.data.pairs import COLUMNS, parse_label
from qpr_jax.data.quoted_tsv import short
from qpr_jax.data.tables import Fields, input_name, read_rows
from qpr_jax.errors import UserError

SCORE, WEIGHT, CALIBRATION = "score", "weight", "calibration"


class Verdicts(NamedTuple):
    """Verdicts on pairs.

    Attributes:
      labeled: P pairs with their labels.
      scores: float64 [P], the probabilities by which they were found; None if a pair has none.
      weights: float64 [P], how many found pairs each verdict stands for, 1 where nothing else is
        said.
      scored_by: what names the calibration of the scores; "" where nothing does.
    """

    labeled: LabeledPairs
    scores: np.ndarray | None
    weights: np.ndarray
    scored_by: str = ""


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
        parsed = fields if isinstance(fields, str) else _parse(fields)
        if isinstance(parsed, str):
            raise UserError(f"{name}, line {line}: {parsed}", remedy="correct the line")
        first, second, label, score, weight = parsed
        cell = fields.get(CALIBRATION) if not isinstance(fields, str) else None
        calibrations.add("" if is_missing(cell) else str(cell))
        a, b = (positions.setdefault(text, len(positions)) for text in (first, second))
        rows.append((a, b, label))
        numbers.append((score, weight))
    if not rows:
        raise UserError(f"{name}: expected verdicts, got none")
    if len(calibrations) > 1:
        what = f"{name}: expected scores of one `{CALIBRATION}`, got {short(sorted(calibrations))}"
        raise UserError(what, remedy="keep the verdicts of one review")
    pairs, labels = np.split(np.array(rows, np.int64), [2], axis=1)
    scores, weights = np.array(numbers).T
    labeled = LabeledPairs([*positions], pairs, labels[:, 0] == 1)
    return Verdicts(labeled, None if np.isnan(scores).any() else scores, weights, *calibrations)


def _parse(fields: Fields) -> tuple[str, str, bool, float, float] | str:
    """Texts, label, score (NaN for none) and weight of a row, or what is wrong with it."""
    texts = ["" if is_missing(fields.get(name)) else fields[name] for name in COLUMNS[:2]]
    if not all(isinstance(text, str) for text in texts):
        return f"expected two questions, got {short(texts)}"
    label = parse_label(fields.get(COLUMNS[2]))
    if label is None:
        return f"expected `{COLUMNS[2]}` 0 or 1, got {short(fields.get(COLUMNS[2]))}"
    score = _number(fields.get(SCORE), math.nan)
    if score is None or not (math.isnan(score) or 0 <= score <= 1):
        return f"expected `{SCORE}`, a probability, got {short(fields.get(SCORE))}"
    weight = _number(fields.get(WEIGHT), 1.0)
    if weight is None or not 0 < weight < math.inf:
        return f"expected `{WEIGHT}`, a number above 0, got {short(fields.get(WEIGHT))}"
    return str(texts[0]), str(texts[1]), label, score, weight


def _number(cell: object, default: float) -> float | None:
    """Parse the number of a cell; the default for a missing one, None for anything else."""
    if is_missing(cell) or not str(cell).strip():
        return default
    try:
        return float(str(cell))
    except ValueError:
        return None
