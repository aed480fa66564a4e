"""Score an encoder on labeled pairs: classification of pairs, and mining of all pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qpr_jax.data.clusters import in_one_cluster, pair_count, transitive_clusters
from qpr_jax.data.question_pairs import QuestionPairs
from qpr_jax.errors import UserError, needs
from qpr_jax.index.close_pairs import Pairs, closest_pairs
from qpr_jax.index.vectors import pair_distances

NO_THRESHOLD = -1.0  # below every distance

Encode = Callable[[list[str]], np.ndarray]


def score_classification(
    encode: Encode, validation: QuestionPairs, test: QuestionPairs
) -> dict[str, Any]:
    """Return `classification_scores` of both, at the `thresholds` best on `validation`."""

    def distances(labeled: QuestionPairs) -> np.ndarray:
        return pair_distances(encode(labeled.questions), *labeled.pairs.T)

    chosen_on = distances(validation)
    thresholds = best_thresholds(chosen_on, validation.is_duplicate)
    return {
        "thresholds": thresholds,
        "validation": classification_scores(chosen_on, validation.is_duplicate, thresholds),
        "test": classification_scores(distances(test), test.is_duplicate, thresholds),
    }


def score_mining(encode: Encode, labeled: QuestionPairs) -> dict[str, float]:
    """Return `mining_scores` of the closest pairs among all of the labeled questions."""
    duplicates = labeled.pairs[labeled.is_duplicate]
    clusters = transitive_clusters(len(labeled.questions), duplicates)
    depth = 100_000 + 10 * pair_count(clusters)
    return mining_scores(closest_pairs(encode(labeled.questions), depth).pairs, clusters)


def best_thresholds(distances: np.ndarray, duplicates: np.ndarray) -> dict[str, float]:
    """Return the thresholds of distances [P] with the best `accuracy` and `f1`, the smallest.

    Accuracy has NO_THRESHOLD if calling no pair a duplicate is best. duplicates: bool [P].
    """
    require_both_labels(duplicates)
    thresholds, counts, true = _at_each_threshold(distances, duplicates)
    others = len(duplicates) - int(duplicates.sum())
    correct = np.append(others, true + others - (counts - true))
    accurate = np.append(NO_THRESHOLD, thresholds)[correct.argmax()]
    f1 = 2 * true / (counts + duplicates.sum())
    return {"accuracy": float(accurate), "f1": float(thresholds[f1.argmax()])}


def classification_scores(
    distances: np.ndarray, duplicates: np.ndarray, thresholds: dict[str, float]
) -> dict[str, float]:
    """Score calling a pair a duplicate up to a distance of `thresholds` (`best_thresholds`).

    `accuracy` is at its threshold, `majority_accuracy` that of giving all pairs the more frequent
    label; `f1`, `precision`, `recall` and `mcc` (Matthews' correlation) are at the threshold of F1;
    `average_precision` and `roc_auc` over all. With few non-duplicates F1, precision, recall and
    average precision are high for any encoder: compare `accuracy` with `majority_accuracy`, and use
    `mcc` or `roc_auc`.
    """
    with needs("scores of labeled pairs", ".[train]"):
        from sklearn.metrics import average_precision_score, matthews_corrcoef, roc_auc_score

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


def mining_scores(mined: Pairs, clusters: np.ndarray) -> dict[str, float]:
    """Score mined pairs, nearest first; a pair within one of `clusters`, int [N], is true.

    Returns:
      `average_precision`: the sum of the precisions up to the distance of each true pair that was
      mined, over the number of all true pairs; `f1`, the best at any distance, with its
      `precision`, `recall` and `threshold`; the counts `true_pairs` and `found_pairs`. As
      `ParaphraseMiningEvaluator` of sentence-transformers, except that pairs at the same distance
      count together, so that their order does not matter.
    """
    true_pairs = pair_count(clusters)
    if not true_pairs:
        raise UserError("mining: expected duplicates among the labeled pairs, got none")
    true = in_one_cluster(clusters, np.stack([mined.first, mined.second], axis=1))
    scores: dict[str, float] = {"true_pairs": true_pairs, "found_pairs": len(true)}
    thresholds, counts, right = _at_each_threshold(mined.distances, true)
    f1 = 2 * right / (counts + true_pairs)
    best = int(f1.argmax())
    return scores | {
        "average_precision": float((np.diff(right, prepend=0) * right / counts).sum() / true_pairs),
        "f1": float(f1[best]),
        "precision": float(right[best] / counts[best]),
        "recall": float(right[best] / true_pairs),
        "threshold": float(thresholds[best]),
    }


def _at_each_threshold(
    distances: np.ndarray, duplicates: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct distances, and the numbers of pairs and duplicates up to each."""
    order = np.argsort(distances, kind="stable")
    ordered = distances[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    return ordered[last], last + 1, np.cumsum(duplicates[order])[last]


def require_both_labels(duplicates: np.ndarray, where: str = "") -> None:
    """Raise a UserError that begins with `where` unless bool [P] has both labels."""
    count = int(duplicates.sum())
    if not 0 < count < len(duplicates):
        got = f"{count:,} duplicates and {len(duplicates) - count:,} others"
        raise UserError(f"{where}expected labeled pairs of both kinds, got {got}")
