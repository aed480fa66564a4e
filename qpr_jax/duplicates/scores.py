"""The pairs of a search, how probable each is, and which of them count."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qpr_jax import progress
from qpr_jax.data.clusters import numbered
from qpr_jax.duplicates.rows import Rows
from qpr_jax.encoders.base import Encoder, encode_in_parts
from qpr_jax.errors import UserError
from qpr_jax.index.close_pairs import ClosePairs, Pairs, close_pairs, closest_pairs
from qpr_jax.index.vectors import pair_distances
from qpr_jax.reranking.calibration import threshold_of_precision
from qpr_jax.reranking.stages import Stages
from qpr_jax.text.cleaning import told_apart
from qpr_jax.text.folding import folded

THRESHOLD = 0.5  # where no way to choose pairs is given
_BELOW = 5  # pairs that are shown where none counts
_FARTHEST = 1e300  # a larger value is a mistake
_NEAR = 1e-9  # how much of a strength the distance is: it orders pairs of equal probability
# The ways to choose pairs, with what is expected of their values.
_WAYS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "threshold": ("a probability, 0 to 1", lambda value: 0 <= value <= 1),
    "max_distance": ("a squared distance of 0 or more", lambda value: 0 <= value < _FARTHEST),
    "precision": ("a probability, more than 0 and at most 1", lambda value: 0 < value <= 1),
    "pairs": ("a whole number from 1 on", lambda value: 1 <= value < _FARTHEST and value % 1 == 0),
}


class Choice(NamedTuple):
    """How the pairs that count are chosen: by the `value` of one `way`.

    "threshold": the least probability. "max_distance": the largest squared distance. "precision":
    the lowest threshold at which the mean probability is at least this. "pairs": the number of
    closest pairs.
    """

    way: str = "threshold"
    value: float = THRESHOLD

    @property
    def by_probability(self) -> bool:
        """Whether it needs an encoder with calibrated probabilities."""
        return self.way in ("threshold", "precision")


def choose(**ways: float | None) -> Choice:
    """The one way that is given, by its name; THRESHOLD where none is.

    Raises:
      UserError: two are given, or a number is out of its range.
    """
    given = {name: value for name, value in ways.items() if value is not None}
    if len(given) > 1:
        what = f"expected one way to choose pairs, got {' and '.join(given)}"
        raise UserError(what, remedy=f"give one of {', '.join(_WAYS)}")
    for name, value in given.items():
        expected, is_valid = _WAYS[name]
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_number or not is_valid(value):
            raise UserError(f"expected {expected}, got {value!r:.80}", setting=name)
        return Choice(name, float(value))
    return Choice()


class Scored(NamedTuple):
    """Pairs of entries, or of rows."""

    first: np.ndarray  # int64 [P]
    second: np.ndarray  # int64 [P]
    scores: np.ndarray  # float64 [P], probabilities, NaN without a calibration
    distances: np.ndarray  # float32 [P], squared

    def where(self, which: np.ndarray | slice) -> Scored:
        """Those of a mask, of positions or of a slice."""
        return Scored(*(values[which] for values in self))


def at_no_distance(first: np.ndarray, second: np.ndarray, score: float) -> Scored:
    """Pairs of one score at distance 0."""
    return Scored(first, second, np.full(len(first), score), np.zeros(len(first), np.float32))


@dataclass(frozen=True)
class Scores:
    """What a search has found; see also `Duplicates`."""

    pairs: Scored  # of entries, those that count, most probable first
    below: Scored  # the first of the others, where no pair of different texts counts
    threshold: float | None
    max_distance: float
    precision: float | None
    calibrated: bool  # whether the pairs have scores
    exact: bool
    missed: float


def find_pairs(
    rows: Rows, vectors: np.ndarray, stages: Stages, choice: Choice, *, memory: int | None = None
) -> Scores:
    """Find the pairs of entries that count as duplicates.

    vectors: float32 [E, d], of the entries. Other arguments are those of `find_duplicates`.
    """
    calibration = stages.calibration
    limit = stages.require_calibration().reach if choice.by_probability else choice.value
    told = Told(rows, stages.encoder)

    def search(distance: float) -> ClosePairs:
        how: dict[str, Any] = {"is_new": rows.is_new, "compare": rows.compare, "memory": memory}
        found = close_pairs(vectors, distance, blocks=rows.blocks, **how)
        differs = rows.folded[found.pairs.first] != rows.folded[found.pairs.second]
        return found._replace(pairs=told.apart(found.pairs.where(differs), distance))

    if choice.way == "pairs":
        found = closest_pairs(vectors, int(choice.value), search)
        limit = float(found.pairs.distances.max(initial=0))
    else:
        found = search(limit)
    first, second, distances = found.pairs
    scores = np.full(len(first), np.nan)
    if calibration is not None:
        features = stages.pair_features()
        with progress.bar("scoring"):
            texts, one, other = told.texts(first, second)
            scores = features.score_pairs(calibration, texts, one, other, distances)
    threshold, counts = None, np.ones(len(first), bool)
    if choice.by_probability:
        threshold = choice.value
        if choice.way == "precision":
            try:
                threshold = threshold_of_precision(scores, choice.value)
            except UserError:
                if len(scores) and rows.compare == "all":
                    raise
                threshold = 1.0  # new rows may well have no duplicates
        counts = scores >= threshold
    close = Scored(first, second, scores, distances)
    copies = copies_across(rows, certain=calibration is not None)
    both = Scored(*map(np.concatenate, zip(copies, close.where(counts), strict=True)))
    return Scores(
        pairs=_strongest_first(both),
        below=_strongest_first(close.where(~counts & (not counts.any()))).where(slice(_BELOW)),
        threshold=threshold,
        max_distance=limit,
        precision=float(scores[counts].mean()) if calibration and counts.any() else None,
        calibrated=calibration is not None,
        exact=found.exact,
        missed=found.missed,
    )


class Told:
    """What tells entries apart that have equal texts after cleaning, but not before.

    Where each of two lacks what cleaning took from the other, they are compared as they were.
    """

    def __init__(self, rows: Rows, encoder: Encoder) -> None:
        self.rows, self.encoder = rows, encoder
        self.near = numbered(map(folded, rows.entry_texts))
        self.known: dict[tuple[int, int], bool] = {}

    def are_told(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Which of the pairs int64 [P] are compared as they were, bool [P]."""
        rows, told = self.rows, np.zeros(len(first), bool)
        if rows.shared is None:
            return told
        for at in np.flatnonzero(self.near[first] == self.near[second]).tolist():
            one, other = pair = int(first[at]), int(second[at])
            if pair not in self.known:
                texts = rows.full_texts[one], rows.full_texts[other]
                self.known[pair] = told_apart(*texts, rows.shared)
            told[at] = self.known[pair]
        return told

    def apart(self, pairs: Pairs, most: float) -> Pairs:
        """Measure such pairs again, and leave those out that are farther than `most`."""
        told = np.flatnonzero(self.are_told(pairs.first, pairs.second))
        if not len(told):
            return pairs
        ends, places = np.unique([pairs.first[told], pairs.second[told]], return_inverse=True)
        vectors = encode_in_parts(self.encoder, [self.rows.full_texts[i] for i in ends.tolist()])
        pairs.distances[told] = pair_distances(vectors, *places.reshape(2, -1))
        pairs = pairs.where(pairs.distances <= most)
        return pairs.where(np.lexsort((pairs.second, pairs.first, pairs.distances)))

    def texts(
        self, first: np.ndarray, second: np.ndarray
    ) -> tuple[list[str], np.ndarray, np.ndarray]:
        """All texts, and which of them the pairs are of."""
        rows = self.rows
        shift = len(rows.entry_texts) * self.are_told(first, second)
        return rows.entry_texts + rows.full_texts, first + shift, second + shift


def copies_across(rows: Rows, *, certain: bool) -> Scored:
    """The pairs of a new entry and an old one of the same text."""
    new, old = np.flatnonzero(rows.is_new), np.flatnonzero(~rows.is_new)
    _, one, other = np.intersect1d(rows.folded[new], rows.folded[old], return_indices=True)
    if not rows.apart:
        one = other = one[:0]
    return at_no_distance(new[one], old[other], 1.0 if certain else np.nan)


def _strongest_first(pairs: Scored) -> Scored:
    """By probability, then by distance; of equal ones, the first entries first."""
    distances = pairs.distances.astype(np.float64)
    near = _NEAR * distances / (1 + distances)
    strength = np.where(np.isnan(pairs.scores), -distances, pairs.scores - near)
    return pairs.where(np.lexsort((pairs.second, pairs.first, -strength)))
