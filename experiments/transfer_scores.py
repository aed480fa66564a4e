"""Figures of a table, and their intervals by a bootstrap.

A figure is a mean of values, one for each query or true pair, or the area under a ROC curve. The
bootstrap draws groups of a table with replacement; two scorers are compared on the same draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 1000
BINS = 10


def draws(clusters: np.ndarray) -> np.ndarray:
    """Count how often each item is drawn: float64 [DRAWS, n], equal for items of a cluster."""
    _, cluster = np.unique(clusters, return_inverse=True)
    count = int(cluster.max(initial=0)) + 1
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), DRAWS)
    return np.asarray(drawn[:, cluster], np.float64)


@dataclass(frozen=True)
class Mean:
    """The mean of values."""

    values: np.ndarray  # float [n]
    clusters: np.ndarray  # int [n], equal where values depend on each other

    @property
    def figure(self) -> float:
        """The mean of all values."""
        return float(self.values.mean())

    def drawn(self) -> np.ndarray:
        """The means of resamples: float64 [DRAWS]."""
        weights = draws(self.clusters)
        return np.asarray(weights @ self.values / np.maximum(weights.sum(axis=1), 1))


@dataclass(frozen=True)
class Area:
    """The share of pairs of a positive and a negative item in which the positive is higher."""

    scores: np.ndarray  # float [n]
    positive: np.ndarray  # bool [n]
    clusters: np.ndarray  # int [n]

    @property
    def figure(self) -> float:
        """The area; equal scores count half."""
        return float(self._wins().mean())

    def _wins(self) -> np.ndarray:
        high, low = self.scores[self.positive, None], self.scores[None, ~self.positive]
        return np.asarray((high > low) + 0.5 * (high == low))

    def drawn(self) -> np.ndarray:
        """The areas of resamples: float64 [DRAWS]."""
        weights, wins = draws(self.clusters), self._wins()
        one, other = weights[:, self.positive], weights[:, ~self.positive]
        total = np.maximum(one.sum(axis=1) * other.sum(axis=1), 1)
        return np.asarray(((one @ wins) * other).sum(axis=1) / total)


Figure = Mean | Area


@dataclass(frozen=True)
class Difference:
    """A figure less another one, and its 95 % interval."""

    mean: float
    low: float
    high: float


def difference(ours: Sequence[Figure], theirs: Sequence[Figure]) -> Difference:
    """Compare the figures of tables in pairs; the tables are weighted equally."""
    gain = np.mean([a.figure - b.figure for a, b in zip(ours, theirs, strict=True)])
    drawn = [a.drawn() - b.drawn() for a, b in zip(ours, theirs, strict=True)]
    rng = np.random.default_rng(1)  # tables are resampled independently of each other
    mean = np.mean([rng.permutation(one) for one in drawn], axis=0)
    low, high = np.percentile(mean, [2.5, 97.5])
    return Difference(float(gain), float(low), float(high))


def precisions(scores: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return the precision of all pairs with at least the score of each true pair, float64 [t].

    Their mean is the average precision; pairs of one score count together.
    """
    order = np.argsort(-scores, kind="stable")
    ordered, right = scores[order], np.cumsum(true[order])
    last = np.searchsorted(-ordered, -ordered, side="right") - 1
    found = np.empty(len(scores))
    found[order] = right[last] / (last + 1)
    return found[true]


def called(positive: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Return precision, recall and F1 of calling some pairs true: both bool [P]."""
    right = int((positive & true).sum())
    return {
        "precision": right / max(1, int(positive.sum())),
        "recall": right / max(1, int(true.sum())),
        "f1": 2 * right / max(1, int(positive.sum() + true.sum())),
    }


def balanced_accuracy(positive: np.ndarray, true: np.ndarray) -> float:
    """Return the mean of the shares of true and of false items that are called right."""
    return float((positive[true].mean() + (~positive[~true]).mean()) / 2)


def calibration_error(probabilities: np.ndarray, true: np.ndarray) -> float:
    """Return the mean difference of probability and truth in BINS parts of equal size."""
    order = np.argsort(probabilities, kind="stable")
    parts = [part for part in np.array_split(order, BINS) if len(part)]
    gaps = [len(p) * abs(probabilities[p].mean() - true[p].mean()) for p in parts]
    return float(sum(gaps) / max(1, len(order)))


def best_bound(scores: Sequence[np.ndarray], true: Sequence[np.ndarray], measure: str) -> float:
    """Return the bound on scores with the best mean over tables of "f1" or of "accuracy".

    "accuracy" is `balanced_accuracy`. scores, true: of each table, [P].
    """
    places = np.quantile(
        np.concatenate([one[same] for one, same in zip(scores, true, strict=True)]),
        np.linspace(0, 1, 201),
    )
    total = np.zeros(len(places))
    for one, same in zip(scores, true, strict=True):
        kept, right = ((len(x) - np.searchsorted(np.sort(x), places)) for x in (one, one[same]))
        if measure == "f1":
            total += 2 * right / (kept + same.sum())
        else:
            total += right / same.sum() - (kept - right) / max(1, (~same).sum())
    return float(places[total.argmax()])
