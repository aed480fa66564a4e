"""Scores of verdicts on pairs: are two questions duplicates, and which of all pairs are."""

from __future__ import annotations

import numpy as np

from qpr_jax.data.clusters import pair_count
from qpr_jax.errors import UserError
from qpr_jax.index.mining import Pairs

NO_THRESHOLD = -1.0  # a threshold up to which there is no pair


def threshold_of_precision(found: Pairs, clusters: np.ndarray, wanted: float) -> float:
    """The largest distance up to which the share of true pairs is at least `wanted`.

    Arguments as of `mining_scores`. UserError where there is none.
    """
    true = _true(found, clusters)
    if not len(true):
        raise UserError("expected pairs of questions to choose a threshold on, got none")
    thresholds, counts, right = _at_each_threshold(found.distances, true)
    good = np.flatnonzero(right / counts >= wanted)
    if not len(good):
        raise UserError(
            f"expected a threshold with a precision of {wanted:g}, got at most "
            f"{(right / counts).max():.3f} among the closest {len(true):,} pairs of the labelled "
            "questions; ask for less"
        )
    return float(thresholds[good[-1]])


def best_thresholds(distances: np.ndarray, duplicates: np.ndarray) -> dict[str, float]:
    """The thresholds of the best `accuracy` and the best `f1`; NOTHING where no pair is best.

    distances: float [P], of labelled pairs. duplicates: bool [P]. The smallest ones where several
    are best.
    """
    require_both(duplicates)
    thresholds, found, true = _at_each_threshold(distances, duplicates)
    others = len(duplicates) - int(duplicates.sum())
    correct = np.append(others, true + others - (found - true))
    f1 = 2 * true / (found + duplicates.sum())
    return {
        "accuracy": float(np.append(NO_THRESHOLD, thresholds)[correct.argmax()]),
        "f1": float(thresholds[f1.argmax()]),
    }


def classification_scores(
    distances: np.ndarray, duplicates: np.ndarray, thresholds: dict[str, float]
) -> dict[str, float]:
    """Scores of calling pairs duplicates up to thresholds of `best_thresholds`.

    Returns:
      `accuracy` at its threshold, and `majority_accuracy`, that of calling all pairs what most of
      them are; `f1`, `precision`, `recall` and `mcc` (Matthews' correlation) at the threshold of
      F1; `average_precision` and `roc_auc` over all thresholds. `pairs` and `non_duplicates` say
      what these rest on: where there are few non-duplicates, all but the accuracy beside the
      majority's, `mcc` and `roc_auc` look good.
    """
    from sklearn.metrics import average_precision_score, matthews_corrcoef, roc_auc_score

    require_both(duplicates)
    count = int(duplicates.sum())
    called = distances <= thresholds["f1"]
    true = int((called & duplicates).sum())
    return {
        "pairs": len(duplicates),
        "non_duplicates": len(duplicates) - count,
        "accuracy": float(((distances <= thresholds["accuracy"]) == duplicates).mean()),
        "majority_accuracy": max(count, len(duplicates) - count) / len(duplicates),
        "f1": 2 * true / (int(called.sum()) + count),
        "precision": true / max(1, int(called.sum())),
        "recall": true / count,
        "mcc": float(matthews_corrcoef(duplicates, called)),
        "average_precision": float(average_precision_score(duplicates, -distances)),
        "roc_auc": float(roc_auc_score(duplicates, -distances)),
    }


def mining_scores(found: Pairs, clusters: np.ndarray) -> dict[str, float]:
    """Scores of pairs found, nearest first, where the true ones are those within clusters.

    clusters: int [N], of each row, -1 for none.

    Returns:
      `average_precision`: the precision up to the distance of each true pair, summed, over all true
      pairs, found or not; `f1`, the best at any distance, with its `precision`, `recall` and
      `threshold`; and `true_pairs`. As `ParaphraseMiningEvaluator` of sentence-transformers, but
      for pairs at the same distance, which count together, whatever their order.
    """
    wanted = pair_count(clusters)
    if not wanted:
        raise UserError("mining: expected duplicates among the labelled pairs, got none")
    true = _true(found, clusters)
    scores: dict[str, float] = {"true_pairs": wanted, "found_pairs": len(true)}
    if not len(true):
        nothing = ("average_precision", "f1", "precision", "recall")
        return scores | dict.fromkeys(nothing, 0.0) | {"threshold": NO_THRESHOLD}
    thresholds, counts, right = _at_each_threshold(found.distances, true)
    f1 = 2 * right / (counts + wanted)
    best = int(f1.argmax())
    return scores | {
        "average_precision": float((np.diff(right, prepend=0) * right / counts).sum() / wanted),
        "f1": float(f1[best]),
        "precision": float(right[best] / counts[best]),
        "recall": float(right[best] / wanted),
        "threshold": float(thresholds[best]),
    }


def _true(found: Pairs, clusters: np.ndarray) -> np.ndarray:
    own = clusters[found.first]
    return (own >= 0) & (own == clusters[found.second])


def _at_each_threshold(
    distances: np.ndarray, duplicates: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each distinct distance: it, the pairs up to it, the duplicates among them."""
    order = np.argsort(distances, kind="stable")
    ordered = distances[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    return ordered[last], last + 1, np.cumsum(duplicates[order])[last]


def require_both(duplicates: np.ndarray, where: str = "") -> None:
    """UserError, which begins with `where`, unless there are duplicates and others, bool [P]."""
    count = int(duplicates.sum())
    if not 0 < count < len(duplicates):
        raise UserError(
            f"{where}expected labelled pairs of both kinds, got {count:,} duplicates and "
            f"{len(duplicates) - count:,} others"
        )
