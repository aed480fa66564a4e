"""The stage of a run after its re-ranker: probabilities of pairs found among all questions.

They are fitted on the pairs of validation questions with all questions, same cluster 1, else 0, and
tested on those of test questions. A pair of two validation questions would be found once from each,
one with a training question only once, so it counts half as much as one of two: then the pairs
are in the proportions of those found among all questions. Questions in clusters and others count
as often as their shares among all questions say.

The bias: clusters lack duplicates that nobody labeled, so that true probabilities are higher; and
large clusters, which are for training alone, have no part in it.
"""

from __future__ import annotations

import logging
import pathlib
import time
from typing import Any

import numpy as np

from qpr_jax.data.clusters import in_one_cluster, pair_count
from qpr_jax.data.splits import TEST, VALIDATION
from qpr_jax.errors import UserError
from qpr_jax.evaluation.reliability import reliability
from qpr_jax.evaluation.retrieval import exact_search, rank
from qpr_jax.index.mining import Pairs, close_pairs, pair_distances
from qpr_jax.reranking.light import calibrate
from qpr_jax.reranking.pair_calibration import (
    CALIBRATION,
    PairCalibration,
    light_identity,
    read_calibration,
    save_calibration,
    threshold_of_precision,
)
from qpr_jax.reranking.pairs import PairReranker
from qpr_jax.reranking.scorer import score_features
from qpr_jax.retriever import Retriever
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.reranker import TrainedReranker

log = logging.getLogger(__name__)

LEAST = 0.02  # the probability at the reach of a calibration
PRECISIONS = (0.8, 0.9, 0.95)
_NEAREST, _SAMPLE = 50, 5000  # hits and queries that choose the reach
_MOST = 20_000_000  # pairs
MIN_DUPLICATES = 20  # of validation questions; fewer are too few to fit


def calibrate_pairs(
    folder: pathlib.Path,
    dataset: TrainDataset,
    retriever: Retriever,
    vectors: np.ndarray,
    reranker: TrainedReranker | None,
) -> PairCalibration | None:
    """Fit and test the calibration of a run, or read it if it is there; None without clusters.

    Args:
      folder: the work directory; gets export/calibration/.
      dataset: the questions and their clusters.
      retriever: the encoder and the index of the run.
      vectors: float32 [Q, d], of all questions.
      reranker: the light re-ranker of the run, if any.
    """
    encoder = retriever.encoder.identity
    identity = light_identity(reranker.model) if reranker else ""
    path = folder / "export" / CALIBRATION
    if (kept := _read(path, encoder, identity)) is not None:
        return kept
    if len(dataset.splits.pairs["validation"]) < MIN_DUPLICATES:
        log.info("no probabilities of pairs: there are no clusters to fit them on")
        return None
    split_of = dataset.splits.split_of
    clusters = dataset.clusters[: len(split_of)]
    start = time.perf_counter()
    reach = _choose_reach(clusters, split_of, vectors)
    pairs = close_pairs(vectors, reach, most=_MOST)
    log.info("probabilities: %s pairs within %.4g", f"{len(pairs.first):,}", reach)
    same = same_cluster(clusters, pairs)
    weights = {s: pair_weights(clusters, split_of, pairs, s) for s in (VALIDATION, TEST)}
    fit = weights[VALIDATION] > 0
    labels, counts = same[fit].astype(np.int8), weights[VALIDATION][fit]
    near = -pairs.distances[fit].astype(np.float64)
    curves: dict[str, Any] = {"distance": _with_end(calibrate(near, labels, counts), reach)}
    raw = None
    if reranker:
        raw = _raw_scores(dataset, retriever, reranker, pairs, fit | (weights[TEST] > 0))
        curves["light"] = calibrate(raw[fit], labels, counts)
    found = PairCalibration(encoder, reach=reach, reranker=identity, **curves)
    tested = weights[TEST] > 0
    given = {"distance": found.probabilities(pairs.distances[tested])}
    if raw is not None:
        given["light"] = found.light_probabilities(raw[tested])
    total = true_pairs(clusters, split_of, TEST)
    settings = {
        "questions": len(vectors),
        "fitted_pairs": int(fit.sum()),
        "fitted_duplicates": int(labels.sum()),
        "test": {
            name: score_probabilities(p, same[tested], weights[TEST][tested], total)
            for name, p in given.items()
        },
        "seconds": time.perf_counter() - start,
    }
    found = PairCalibration(encoder, reach=reach, reranker=identity, settings=settings, **curves)
    save_calibration(path, found)
    return found


def pair_weights(
    clusters: np.ndarray, split_of: np.ndarray, pairs: Pairs, split: int
) -> np.ndarray:
    """How many pairs found among all questions each pair of a split stands for, float64 [P].

    0 for a pair without a question of the split and, of validation, with a test question.

    Args:
      clusters, split_of: int [Q].
      pairs: P pairs of rows.
      split: VALIDATION or TEST.
    """
    clustered = clusters >= 0
    weight = np.zeros(len(split_of))
    for kind in (clustered, ~clustered):
        own = (split_of == split) & kind
        weight[own] = kind.sum() / max(1, own.sum())
    weights = (weight[pairs.first] + weight[pairs.second]) / 2
    if split == VALIDATION:  # its pairs with test questions are left out, and others stand for them
        is_test = split_of == TEST
        weights[is_test[pairs.first] | is_test[pairs.second]] = 0
        weights[~same_cluster(clusters, pairs)] *= len(is_test) / max(1, (~is_test).sum())
    return weights


def score_probabilities(
    probabilities: np.ndarray, same: np.ndarray, weights: np.ndarray, total: float
) -> dict[str, Any]:
    """Score the probabilities of found pairs against clusters.

    Args:
      probabilities, weights: float64 [P].
      same: bool [P], whether both are in one cluster.
      total: the weight of all pairs of one cluster, found or not.

    Returns:
      What `reliability` does; `expected` and `found` precision and the recall of the pairs with
      the thresholds for PRECISIONS; those and F1 at the threshold .5; the best F1.
    """
    scores = reliability(probabilities, same, weights)
    order = np.argsort(-probabilities, kind="stable")
    right = np.cumsum((weights * same)[order])
    f1 = 2 * right / (np.cumsum(weights[order]) + total)
    last = np.append(np.diff(probabilities[order]) != 0, True)
    scores["best_f1"] = float(f1[last].max())
    scores["half"] = _at(0.5, probabilities, same, weights, total)
    scores["precision_asked"], scores["precision"] = [*PRECISIONS], {}
    for asked in PRECISIONS:
        try:
            threshold = threshold_of_precision(probabilities, asked, weights)
        except UserError:
            continue
        scores["precision"][f"{asked:g}"] = _at(threshold, probabilities, same, weights, total)
    return scores


def _at(
    threshold: float, probabilities: np.ndarray, same: np.ndarray, weights: np.ndarray, total: float
) -> dict[str, float]:
    """The scores of the pairs with at least a threshold."""
    taken = probabilities >= threshold
    count, right = weights[taken].sum(), weights[taken & same].sum()
    return {
        "threshold": float(threshold),
        "expected": float((weights * probabilities)[taken].sum() / max(count, 1e-300)),
        "found": float(right / max(count, 1e-300)),
        "recall": float(right / total),
        "f1": float(2 * right / (count + total)),
    }


def _choose_reach(clusters: np.ndarray, split_of: np.ndarray, vectors: np.ndarray) -> float:
    """Choose the squared distance beyond which fewer than LEAST of the pairs are duplicates."""
    queries = np.flatnonzero(split_of == VALIDATION)
    chosen = np.random.default_rng(0).permutation(len(queries))[:_SAMPLE]
    queries = queries[np.sort(chosen)]
    found = rank(exact_search(vectors), queries, min(_NEAREST, len(vectors) - 1))
    valid = found >= 0
    pairs = Pairs(np.repeat(queries, valid.sum(axis=1)), found[valid], np.zeros(0, np.float32))
    distances = pair_distances(vectors, pairs.first, pairs.second)
    weights = pair_weights(clusters, split_of, pairs, VALIDATION)
    kept = weights > 0
    same = same_cluster(clusters, pairs)[kept]
    places, values = calibrate(-distances[kept].astype(np.float64), same, weights[kept])
    return float(max(0.0, -places[np.searchsorted(values, min(LEAST, values[-1]))]))


def _raw_scores(
    dataset: TrainDataset,
    retriever: Retriever,
    reranker: TrainedReranker,
    pairs: Pairs,
    needed: np.ndarray,
) -> np.ndarray:
    """Score pairs by re-rankers that were not fitted to them, float64 [P]; 0 if not needed."""
    folds = reranker.folds
    fold_of = np.where(folds[pairs.first] >= 0, folds[pairs.first], folds[pairs.second])
    scorers = [(-1, reranker.model.scorer), *enumerate(reranker.scorers)]

    def score(features: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        scores, fold = np.empty(len(features)), fold_of[numbers]
        for number, scorer in scorers:
            scores[fold == number] = score_features(scorer, features[fold == number])
        return scores

    statistics = retriever.index.keep_statistics()
    inputs = (reranker.model, retriever.encoder, statistics, dataset.data.questions)
    return PairReranker(*inputs, score=score).score(pairs, needed)


def _with_end(curve: np.ndarray, reach: float) -> np.ndarray:
    """Let the probability fall to 0 at twice the reach, beyond which nothing was fitted."""
    end = np.array([[-2 * reach - 1e-6], [0.0]])
    return np.hstack([end, curve])


def same_cluster(clusters: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Whether both questions of a pair are in one cluster, bool [P]."""
    return in_one_cluster(clusters, np.stack([pairs.first, pairs.second], axis=1))


def true_pairs(clusters: np.ndarray, split_of: np.ndarray, split: int) -> float:
    """The weight, as of `pair_weights`, of all pairs of the clusters of a split."""
    clustered = clusters >= 0
    own = (split_of == split) & clustered
    return float(pair_count(clusters[own]) * clustered.sum() / max(1, own.sum()))


def _read(path: pathlib.Path, encoder: str, reranker: str) -> PairCalibration | None:
    """Read the calibration of these; None if there is none."""
    if not path.exists():
        return None
    found = read_calibration(path)
    return found if (found.encoder, found.reranker) == (encoder, reranker) else None
