"""Scores of rankings, of labeled pairs and of probabilities, with intervals by a bootstrap.

In the scores of rankings `relevance` is bool [n, K]: whether each of the K questions retrieved for
query i is relevant, nearest first. Results are float64 [n]; a query without relevant questions
scores 0.
"""

from __future__ import annotations

import functools
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import faiss
import numpy as np

from qpr_jax.data.question_pairs import (
    QuestionPairs,
    in_one_cluster,
    pair_count,
    transitive_clusters,
)
from qpr_jax.errors import UserError, needs
from qpr_jax.files import StrPath, write_atomically
from qpr_jax.index.close_pairs import ClosePairs, Pairs, close_pairs, pair_distances

SCORE_NAMES = ("H@1", "H@10", "MRR")
RESAMPLES = 2000
BINS = 15
NO_THRESHOLD = -1.0  # below every distance
_GUESS_ROWS, _GUESS_OTHERS = 512, 32_768  # compared to guess the distance of the closest pairs

Encode = Callable[[list[str]], np.ndarray]


def hits(relevance: np.ndarray, k: int) -> np.ndarray:
    """Return 1 if a relevant question is among the first `k` (H@k, section 4.3 of the paper)."""
    return np.where(relevance[:, :k].any(axis=1), 1.0, 0.0)


def ndcg(grades: np.ndarray, ideal: np.ndarray, k: int) -> np.ndarray:
    """Sum grade / log2(1 + rank) over the first `k`, divided by the sum of the best ranking.

    As `ndcg_cut` of trec_eval. grades: int or bool [n, K], of the retrieved questions, nearest
    first; 0 where not judged. A grade below 0 counts 0. ideal: [n, K], all grades of the query,
    highest first, then 0.
    """
    discounts = 1 / np.log2(np.arange(2, k + 2))

    def gain(ranked: np.ndarray) -> np.ndarray:
        first = np.maximum(ranked[:, :k], 0)
        return np.asarray(first @ discounts[: first.shape[1]])

    best = gain(ideal)
    return gain(grades) / np.where(best > 0, best, 1)


def ranking_scores(
    grades: np.ndarray, ideal: np.ndarray, relevant: np.ndarray, cutoffs: Sequence[int]
) -> dict[str, np.ndarray]:
    """Score each query at each K of `cutoffs`; a grade of 1 or more is relevant.

    `ndcg@K`; `recall@K`, the share of the relevant questions that are among the first K;
    `precision@K`, the share of the first K that are relevant; `map@K`, the sum of the precisions at
    the relevant ones of the first K, over the number of all relevant questions, as `map_cut` of
    trec_eval.

    Args:
      grades, ideal: as of `ndcg`.
      relevant: int [n], the number of relevant questions, retrieved or not.
      cutoffs: each at most the length of a ranking.
    """
    relevance = grades > 0
    found = np.cumsum(relevance, axis=1)
    precision = found / np.arange(1, relevance.shape[1] + 1)
    precisions = np.cumsum(precision * relevance, axis=1)
    most = np.maximum(relevant, 1)
    scores = {f"ndcg@{k}": ndcg(grades, ideal, k) for k in cutoffs}
    scores |= {f"map@{k}": precisions[:, k - 1] / most for k in cutoffs}
    scores |= {f"recall@{k}": found[:, k - 1] / most for k in cutoffs}
    return scores | {f"precision@{k}": precision[:, k - 1] for k in cutoffs}


def reciprocal_rank(relevance: np.ndarray, k: int) -> np.ndarray:
    """Return 1 / rank of the first relevant question among the first `k`, or 0; mean: MRR."""
    first = relevance[:, :k]
    return np.where(first.any(axis=1), 1 / (1.0 + first.argmax(axis=1)), 0.0)


def rank_scores(
    ranks: Mapping[str, np.ndarray], split: str, search: str, over: str, *, minus: str = ""
) -> np.ndarray:
    """Return the mean, and the ends of its 95 % interval, of SCORE_NAMES: float64 [3, scores].

    ranks: those of a run, see `read_ranks`, of which those of `search`, such as "exact" or "index",
      are scored, or the difference to the search `minus`.
    over: "pair" or "query", what a mean is taken over.
    """
    clusters = ranks[f"{split}_clusters"]
    weights = ranks[f"{split}_pairs"] if over == "pair" else np.ones(len(clusters))
    values = query_scores(ranks[f"{split}_{search}"])
    if minus:
        values -= query_scores(ranks[f"{split}_{minus}"])
    ends = mean_interval(values, clusters, weights)
    return np.stack([np.average(values, axis=0, weights=weights), *ends])


def mean_interval(
    values: np.ndarray, clusters: np.ndarray, repeats: np.ndarray | None = None
) -> np.ndarray:
    """Return the ends of the 95 % interval of means, by resamples of clusters: [2] or [2, S].

    values: [n] or [n, S], of queries; or differences of two systems. clusters: int [n], equal where
    queries depend on each other. repeats: [n], how often each value counts; None: once.
    """
    weights = np.ones(len(values)) if repeats is None else repeats
    _, cluster = np.unique(clusters, return_inverse=True)
    columns = np.column_stack([values, np.ones(len(values))]) * weights[:, None]
    sums = np.zeros((int(cluster.max()) + 1, columns.shape[1]))
    np.add.at(sums, cluster, columns)
    totals = _draws(len(sums)) @ sums
    ends = np.percentile(totals[:, :-1] / totals[:, -1:], [2.5, 97.5], axis=0)
    return np.asarray(ends.reshape(2, *values.shape[1:]))


@functools.lru_cache(maxsize=2)
def _draws(clusters: int) -> np.ndarray:
    """Return how often each of the clusters is in each resample, float64 [RESAMPLES, clusters]."""
    shares = np.full(clusters, 1 / clusters)
    drawn = np.random.default_rng(0).multinomial(clusters, shares, RESAMPLES)
    return drawn.astype(np.float64)


def query_scores(ranks: np.ndarray) -> np.ndarray:
    """Return SCORE_NAMES of each query from the rank of its first relevant question, 0 for none."""
    rank = ranks.astype(np.float64)
    rank[rank == 0] = np.inf
    return np.stack([rank == 1, rank <= 10, 1 / rank], axis=1).astype(np.float64)


def write_ranks(path: StrPath, ranks: Mapping[str, np.ndarray]) -> None:
    """Write the `ranks.npz` of a run, atomically."""
    with write_atomically(path) as file:
        np.savez_compressed(file, allow_pickle=False, **ranks)


def read_ranks(path: StrPath) -> dict[str, np.ndarray]:
    """Read the `ranks.npz` of a run."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (ValueError, OSError, zipfile.BadZipFile, zlib.error) as error:
        got = error.strerror if isinstance(error, OSError) else "no whole .npz file"
        what = f"{path}: expected the ranks of a run, got {got}"
        raise UserError(what, remedy="remove the folder and run it again") from error


def reliability(
    probabilities: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    bins: int = BINS,
) -> dict[str, Any]:
    """Compare probabilities float [n] with labels bool [n], in bins of equal count.

    Cases of one probability have the mean of their labels. weights: float [n], how often each case
    counts; None: once.

    Returns:
      `ece`: the expected calibration error, the mean over bins of the difference between the mean
      probability and the share of true labels. `brier`: the mean squared error; `base_brier`: that
      of giving all the same probability, the share of true labels, `base_rate`. `curve`: [mean
      probability, share of true labels, weight] of each bin, ascending.
    """
    counts = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
    order = np.argsort(probabilities, kind="stable")
    p, y, w = probabilities[order].astype(np.float64), labels[order].astype(float), counts[order]
    _, group = np.unique(p, return_inverse=True)
    mass = np.bincount(group, w)
    shares = (np.bincount(group, w * y) / np.maximum(mass, 1e-300))[group]
    total = w.sum()
    place = np.minimum((np.cumsum(w) - w / 2) * bins / total, bins - 1).astype(int)
    size = np.bincount(place, w, bins)
    kept = size > 0
    mean = np.bincount(place, w * p, bins)[kept] / size[kept]
    share = np.bincount(place, w * shares, bins)[kept] / size[kept]
    rate = float((w * y).sum() / total)
    return {
        "ece": float((size[kept] * abs(mean - share)).sum() / total),
        "brier": float((w * (p - y) ** 2).sum() / total),
        "base_brier": rate * (1 - rate),
        "base_rate": rate,
        "curve": np.stack([mean, share, size[kept]], axis=1).tolist(),
    }


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
    """Return the thresholds of distances [P] with the best `accuracy`, `f1` and `balanced`.

    That is the mean accuracy of both kinds. Of equal ones, the smallest. Accuracy has NO_THRESHOLD
    if calling no pair a duplicate is best. duplicates: bool [P].
    """
    require_both_labels(duplicates)
    thresholds, counts, true = _at_each_threshold(distances, duplicates)
    others = len(duplicates) - int(duplicates.sum())
    correct = np.append(others, true + others - (counts - true))
    accurate = np.append(NO_THRESHOLD, thresholds)[correct.argmax()]
    f1 = 2 * true / (counts + duplicates.sum())
    balanced = true / duplicates.sum() - (counts - true) / others
    best = {"f1": f1, "balanced": balanced}
    chosen = {name: float(thresholds[each.argmax()]) for name, each in best.items()}
    return {"accuracy": float(accurate)} | chosen


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


def closest_pairs(vectors: np.ndarray, count: int) -> ClosePairs:
    """Find the `count` closest pairs of rows float32 [N, d], or all where there are fewer.

    The distance of a search is guessed from a sample, and raised until there are enough pairs.
    """
    all_pairs = len(vectors) * (len(vectors) - 1) // 2
    drawn = np.random.default_rng(0).permutation(len(vectors))
    some, others = np.split(drawn, [min(len(drawn) // 2, _GUESS_ROWS)])
    left, right = vectors[np.sort(some)], vectors[np.sort(others[:_GUESS_OTHERS])]
    with np.errstate(invalid="ignore"):  # the search refuses what is not finite
        apart = faiss.pairwise_distances(left - right[:1], right - right[:1])
    sampled = np.sort(apart, axis=None)
    aim = 1.5 * count
    while True:
        place = int(aim / max(1, all_pairs) * len(sampled)) + 4
        is_last = aim >= all_pairs or place >= len(sampled)
        distance = float(np.finfo(np.float32).max) if is_last else float(sampled[place])
        found = close_pairs(vectors, distance)
        number = len(found.pairs.first)
        if is_last or number >= count:
            return found._replace(pairs=found.pairs.where(slice(count)))
        aim *= max(4.0, 1.5 * count / max(1, number))


def wilson(share: float, count: float, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's score interval of a share of `count` trials; 95 % by default."""
    scale = 1 + z * z / count
    middle = (share + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
