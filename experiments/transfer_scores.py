"""Figures of a table, and their intervals by a bootstrap.

A figure is a mean of values, one for each query or true pair, or the area under a ROC curve. The
bootstrap draws groups of a table with replacement; two scorers are compared on the same draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DRAWS = 1000


class Figure(NamedTuple):
    """A figure of a table, and of its resamples."""

    value: float
    drawn: np.ndarray  # float64 [DRAWS]


class Difference(NamedTuple):
    """A figure less another one, and its 95 % interval."""

    mean: float
    low: float
    high: float


def draws(clusters: np.ndarray) -> np.ndarray:
    """Count how often each item is drawn: float64 [DRAWS, n], equal for items of a cluster."""
    _, cluster = np.unique(clusters, return_inverse=True)
    count = int(cluster.max(initial=0)) + 1
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), DRAWS)
    return np.asarray(drawn[:, cluster], np.float64)


def mean_figure(values: np.ndarray, clusters: np.ndarray) -> Figure:
    """Return the mean of values float [n]; clusters are equal where values depend on each other."""
    weights = draws(clusters)
    drawn = weights @ values / np.maximum(weights.sum(axis=1), 1)
    return Figure(float(values.mean()), np.asarray(drawn))


def area_figure(scores: np.ndarray, positive: np.ndarray, clusters: np.ndarray) -> Figure:
    """Return the share of pairs of a positive and a negative item with the positive one higher.

    Equal scores count half. Arguments: float [n], bool [n], int [n].
    """
    high, low = scores[positive, None], scores[None, ~positive]
    wins = (high > low) + 0.5 * (high == low)
    weights = draws(clusters)
    one, other = weights[:, positive], weights[:, ~positive]
    total = np.maximum(one.sum(axis=1) * other.sum(axis=1), 1)
    return Figure(float(wins.mean()), np.asarray(((one @ wins) * other).sum(axis=1) / total))


def difference(ours: Sequence[Figure], theirs: Sequence[Figure]) -> Difference:
    """Compare the figures of tables in pairs; the tables are weighted equally."""
    gain = np.mean([a.value - b.value for a, b in zip(ours, theirs, strict=True)])
    rng = np.random.default_rng(1)  # tables are resampled independently of each other
    drawn = [rng.permutation(a.drawn - b.drawn) for a, b in zip(ours, theirs, strict=True)]
    low, high = np.percentile(np.mean(drawn, axis=0), [2.5, 97.5])
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
    right, chosen, wanted = (int(x.sum()) for x in (positive & true, positive, true))
    return {
        "precision": right / max(1, chosen),
        "recall": right / max(1, wanted),
        "f1": 2 * right / max(1, chosen + wanted),
    }


def balanced_accuracy(positive: np.ndarray, true: np.ndarray) -> float:
    """Return the mean of the shares of true and of false items that are called right."""
    return float((positive[true].mean() + (~positive[~true]).mean()) / 2)


def best_bound(scores: Sequence[np.ndarray], true: Sequence[np.ndarray], measure: str) -> float:
    """Return the bound on scores with the best mean over tables of "f1" or of "accuracy".

    "accuracy" is `balanced_accuracy`. scores, true: of each table, [P].
    """
    found = [one[same] for one, same in zip(scores, true, strict=True)]
    places = np.quantile(np.concatenate(found), np.linspace(0, 1, 201))
    total = np.zeros(len(places))
    for one, same in zip(scores, true, strict=True):
        kept, right = ((len(x) - np.searchsorted(np.sort(x), places)) for x in (one, one[same]))
        if measure == "f1":
            total += 2 * right / (kept + same.sum())
        else:
            total += right / same.sum() - (kept - right) / max(1, (~same).sum())
    return float(places[total.argmax()])
