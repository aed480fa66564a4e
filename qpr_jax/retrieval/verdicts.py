"""Scores of verdicts on pairs: are two questions duplicates, and which of all pairs are."""

from __future__ import annotations

import numpy as np

from qpr_jax.data.clusters import pair_count
from qpr_jax.errors import UserError
from qpr_jax.retrieval.mining import Pairs


def threshold_of_precision(distances: np.ndarray, duplicates: np.ndarray, wanted: float) -> float:
    """The largest threshold below which the share of duplicates is at least `wanted`.

    distances: float [P], of labelled pairs. duplicates: bool [P]. UserError where there is none.
    """
    _require_both(duplicates)
    thresholds, found, true = _at_each_threshold(distances, duplicates)
    precision = true / found
    good = np.flatnonzero(precision >= wanted)
    if not len(good):
        raise UserError(
            f"expected a threshold with a precision of {wanted:g}, got at most "
            f"{precision.max():.3f} on {len(duplicates):,} labelled pairs; ask for less"
        )
    return float(thresholds[good[-1]])


def best_thresholds(distances: np.ndarray, duplicates: np.ndarray) -> dict[str, float]:
    """The thresholds of the best `accuracy` and the best `f1`; arguments as above.

    The smallest ones where several are best.
    """
    _require_both(duplicates)
    thresholds, found, true = _at_each_threshold(distances, duplicates)
    correct = true + (~duplicates).sum() - (found - true)
    f1 = 2 * true / (found + duplicates.sum())
    return {
        "accuracy": float(thresholds[correct.argmax()]),
        "f1": float(thresholds[f1.argmax()]),
    }


def classification_scores(
    distances: np.ndarray, duplicates: np.ndarray, thresholds: dict[str, float]
) -> dict[str, float]:
    """Accuracy, F1, precision and recall at thresholds of `best_thresholds`, average precision.

    Precision and recall are those of the F1. `non_duplicates` says how many pairs these rest on:
    where there are few, everything looks good.
    """
    from sklearn.metrics import average_precision_score

    _require_both(duplicates)
    count = int(duplicates.sum())
    called = distances <= thresholds["f1"]
    true = int((called & duplicates).sum())
    return {
        "pairs": len(duplicates),
        "non_duplicates": len(duplicates) - count,
        "accuracy": float(((distances <= thresholds["accuracy"]) == duplicates).mean()),
        "f1": 2 * true / (int(called.sum()) + count),
        "precision": true / max(1, int(called.sum())),
        "recall": true / count,
        "average_precision": float(average_precision_score(duplicates, -distances)),
    }


def mining_scores(found: Pairs, clusters: np.ndarray) -> dict[str, float]:
    """Scores of pairs found, nearest first, where the true ones are those within clusters.

    clusters: int [N], of each row, -1 for none.

    Returns:
      `average_precision`: the precision at each true pair, summed, over all true pairs, found or
      not; `f1`, the best at any distance, with its `precision`, `recall` and `threshold`; and
      `true_pairs`. As `ParaphraseMiningEvaluator` of sentence-transformers.
    """
    wanted = pair_count(clusters)
    if not wanted:
        raise UserError("mining: expected duplicates among the labelled pairs, got none")
    own = clusters[found.first]
    true = (own >= 0) & (own == clusters[found.second])
    hits = np.cumsum(true)
    precision = hits / np.arange(1, len(true) + 1)
    scores: dict[str, float] = {
        "true_pairs": wanted,
        "found_pairs": len(true),
        "average_precision": float((precision * true).sum() / wanted),
    }
    if not len(true):
        return scores | {"f1": 0.0, "precision": 0.0, "recall": 0.0, "threshold": 0.0}
    thresholds, counts, right = _at_each_threshold(found.distances, true)
    f1 = 2 * right / (counts + wanted)
    best = int(f1.argmax())
    return scores | {
        "f1": float(f1[best]),
        "precision": float(right[best] / counts[best]),
        "recall": float(right[best] / wanted),
        "threshold": float(thresholds[best]),
    }


def _at_each_threshold(
    distances: np.ndarray, duplicates: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each distinct distance: it, the pairs up to it, the duplicates among them."""
    order = np.argsort(distances, kind="stable")
    ordered = distances[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    return ordered[last], last + 1, np.cumsum(duplicates[order])[last]


def _require_both(duplicates: np.ndarray) -> None:
    count = int(duplicates.sum())
    if not 0 < count < len(duplicates):
        raise UserError(
            f"expected labelled pairs of both kinds, got {count:,} duplicates and "
            f"{len(duplicates) - count:,} others"
        )
