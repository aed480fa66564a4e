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

import contextlib
import dataclasses
import logging
from typing import Any

import numpy as np

from qpr_jax.data.clusters import in_one_cluster
from qpr_jax.data.splits import TEST, VALIDATION
from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.evaluation.metrics import reliability
from qpr_jax.evaluation.retrieval import exact_search, rank
from qpr_jax.index.close_pairs import Pairs, close_pairs
from qpr_jax.index.vectors import distances_to
from qpr_jax.reranking.calibration import PairCalibration, calibrate, threshold_of_precision
from qpr_jax.reranking.pairs import score_pairs
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.reranker import TrainedReranker, out_of_fold

log = logging.getLogger(__name__)

LEAST = 0.02  # the probability at the reach of a calibration
PRECISIONS = (0.8, 0.9, 0.95)
_NEAREST, _FEW, _MANY, _REACH_SAMPLE = 50, 5, 40, 2000
_MOST = 10_000  # queries of a split
MIN_DUPLICATES = 20  # of validation questions; fewer are too few to fit


def calibrate_pairs(
    dataset: TrainDataset,
    encoder: Encoder,
    vectors: np.ndarray,
    reranker: TrainedReranker | None,
) -> PairCalibration | None:
    """Fit and test the calibration of a run; None without clusters.

    Args:
      dataset: the questions and their clusters.
      encoder: the encoder of the run.
      vectors: float32 [Q, d], of all questions.
      reranker: the light re-ranker of the run, if any.
    """
    if len(dataset.splits.pairs["validation"]) < MIN_DUPLICATES:
        log.info("no probabilities of pairs: there are no clusters to fit them on")
        return None
    found = _fit(dataset, encoder, vectors, reranker)
    for name, scores in found.settings["test"].items():
        values = name, scores["ece"], scores["best_f1"]
        log.info("probabilities by %s: calibration error %.3f, best F1 %.3f", *values)
    return found


def _fit(
    dataset: TrainDataset,
    encoder: Encoder,
    vectors: np.ndarray,
    reranker: TrainedReranker | None,
) -> PairCalibration:
    """Fit the curves to pairs of validation questions, and test them on those of test questions."""
    split_of = dataset.splits.split_of
    clusters = dataset.clusters[: len(split_of)]
    queries = {split: _sample(split_of, split, _MOST) for split in (VALIDATION, TEST)}
    reach = _choose_reach(clusters, split_of, vectors)
    pairs = _find_pairs(vectors, reach, np.concatenate([*queries.values()]))
    same = same_cluster(clusters, pairs)
    counts = fit_weights(clusters, split_of, queries[VALIDATION], pairs)
    tested_counts = pair_weights(clusters, queries[TEST], pairs)
    fit, tested = counts > 0, tested_counts > 0
    labels = same[fit].astype(np.int8)
    curve = calibrate(-pairs.distances[fit].astype(np.float64), labels, counts[fit])
    # The probability falls to 0 at twice the reach, beyond which nothing was fitted.
    curve = np.hstack([[[-2 * reach - 1e-6], [0.0]], curve])
    found = PairCalibration(encoder.identity, curve, reach)
    given = {"distance": found.probabilities(pairs.distances[tested])}
    if reranker:
        # By networks that were not fitted to the pair.
        folds, networks = reranker.folds, reranker.networks
        fold_of = np.where(folds[pairs.first] >= 0, folds[pairs.first], folds[pairs.second])
        raw = score_pairs(
            reranker.model,
            encoder,
            dataset.data.questions,
            *pairs,
            needed=fit | tested,
            score=lambda features, numbers: out_of_fold(networks, features, fold_of[numbers]),
        )
        light, identity = calibrate(raw[fit], labels, counts[fit]), reranker.model.identity
        found = dataclasses.replace(found, light=light, reranker=identity)
        given["light"] = found.light_probabilities(raw[tested])
    truth = same[tested], tested_counts[tested], true_pairs(clusters, queries[TEST])
    found.settings.update(
        questions=len(vectors),
        fitted_pairs=int(fit.sum()),
        fitted_duplicates=int(labels.sum()),
        test={name: score_probabilities(p, *truth) for name, p in given.items()},
    )
    return found


def pair_weights(clusters: np.ndarray, queries: np.ndarray, pairs: Pairs) -> np.ndarray:
    """How many pairs found among all questions each pair of `queries` stands for, float64 [P].

    0 for a pair without a query.

    Args:
      clusters: int [Q], -1 for none.
      queries: int [q], rows of the questions of a split, at random from those in clusters and
        from the others.
      pairs: P pairs of rows.
    """
    weight, is_query = np.zeros(len(clusters)), np.zeros(len(clusters), bool)
    is_query[queries] = True
    for kind in (clusters >= 0, clusters < 0):
        weight[is_query & kind] = kind.sum() / max(1, (is_query & kind).sum())
    return np.asarray((weight[pairs.first] + weight[pairs.second]) / 2)


def fit_weights(
    clusters: np.ndarray, split_of: np.ndarray, queries: np.ndarray, pairs: Pairs
) -> np.ndarray:
    """As `pair_weights`, of validation: nothing is learned from pairs with a test question.

    Their weight is 0, and the other pairs of two clusters stand for them.
    """
    weights, is_test = pair_weights(clusters, queries, pairs), split_of == TEST
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

    def at(threshold: float) -> dict[str, float]:
        taken = probabilities >= threshold
        count, right = weights[taken].sum(), weights[taken & same].sum()
        return {
            "threshold": float(threshold),
            "expected": float((weights * probabilities)[taken].sum() / max(count, 1e-300)),
            "found": float(right / max(count, 1e-300)),
            "recall": float(right / total),
            "f1": float(2 * right / (count + total)),
        }

    scores = reliability(probabilities, same, weights)
    order = np.argsort(-probabilities, kind="stable")
    right = np.cumsum((weights * same)[order])
    f1 = 2 * right / (np.cumsum(weights[order]) + total)
    last = np.append(np.diff(probabilities[order]) != 0, True)
    scores |= {"best_f1": float(f1[last].max()), "half": at(0.5)}
    scores |= {"precision_asked": [*PRECISIONS], "precision": {}}
    for asked in PRECISIONS:
        with contextlib.suppress(UserError):  # no threshold has it
            threshold = threshold_of_precision(probabilities, asked, weights)
            scores["precision"][f"{asked:g}"] = at(threshold)
    return scores


def _sample(split_of: np.ndarray, split: int, most: int) -> np.ndarray:
    """Choose at most this many questions of a split: their rows, int64 [q]."""
    rows = np.flatnonzero(split_of == split)
    return np.sort(np.random.default_rng(0).permutation(rows)[:most])


def _choose_reach(clusters: np.ndarray, split_of: np.ndarray, vectors: np.ndarray) -> float:
    """Choose the squared distance beyond which fewer than LEAST of the pairs are duplicates.

    But a question has between _FEW and _MANY others within it, in the mean.
    """
    queries = _sample(split_of, VALIDATION, _REACH_SAMPLE)
    found = rank(exact_search(vectors), queries, min(_NEAREST, len(vectors) - 1))
    valid = found >= 0
    rows = np.repeat(queries, valid.sum(axis=1))
    distances = distances_to(vectors[queries], vectors, found)[valid]
    pairs = Pairs(rows, found[valid], distances)
    weights = fit_weights(clusters, split_of, queries, pairs)
    kept = weights > 0
    same = same_cluster(clusters, pairs)[kept]
    places, values = calibrate(-distances[kept].astype(np.float64), same, weights[kept])
    reach = -places[np.searchsorted(values, min(LEAST, values[-1]))]
    few, many = (np.sort(distances)[: count * len(queries)][-1] for count in (_FEW, _MANY))
    return float(np.clip(reach, few, many))


def _find_pairs(vectors: np.ndarray, reach: float, queries: np.ndarray) -> Pairs:
    """Find the pairs of the queries, and all pairs of the other questions in these."""
    is_hit = np.zeros(len(vectors), bool)
    is_hit[queries] = True
    near = close_pairs(vectors, reach, is_new=is_hit.copy(), compare="new").pairs
    is_hit[near.first] = is_hit[near.second] = True
    pairs = close_pairs(vectors, reach, is_new=is_hit, compare="new").pairs
    log.info("probabilities: %s pairs within %.4g", f"{len(pairs.first):,}", reach)
    return pairs


def same_cluster(clusters: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Whether both questions of a pair are in one cluster, bool [P]."""
    return in_one_cluster(clusters, np.stack([pairs.first, pairs.second], axis=1))


def true_pairs(clusters: np.ndarray, queries: np.ndarray) -> float:
    """The weight, as of `pair_weights`, of all pairs of the clusters of queries."""
    clustered = clusters >= 0
    own = queries[clustered[queries]]
    sizes = np.bincount(clusters[clustered])[clusters[own]]
    return float((sizes - 1).sum() / 2 * clustered.sum() / max(1, len(own)))
