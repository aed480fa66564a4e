"""Fit gradient-boosted trees (LambdaRank) to the hits of many queries, with cross-validation.

Queries are divided into folds by cluster. The out-of-fold score of a query is by trees fitted to
the other folds, with a size chosen on these folds alone; the shipped trees are fitted to all.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.machine import cpu_count
from qpr_jax.reranking.base import owners_of, starts_of
from qpr_jax.reranking.trees import Forest, parse_forest, predict

log = logging.getLogger(__name__)

FOLDS = 5
LEAVES = (7, 15)  # of a tree
TREES = (100, 200)
MIN_QUERIES = 50  # with both relevant and other hits; fewer are too few to learn from
_QUERIES_PER_TREE = 2  # fewer queries get fewer trees
_DEPTH = 20  # of MRR
_TRUNCATION = 5  # LightGBM's lambdarank_truncation_level; 20 measured worse, and slower


class Lists(NamedTuple):
    """Hits of q queries; those of a query are contiguous.

    features: float32 [m, f]. labels: int8 [m], 1 where a hit is relevant. starts: int64 [q + 1].
    folds: int [q], 0 to FOLDS - 1. hit_folds: int [m], the folds of the hits, -1 for none.
    """

    features: np.ndarray
    labels: np.ndarray
    starts: np.ndarray
    folds: np.ndarray
    hit_folds: np.ndarray

    def select(self, queries: np.ndarray, hits: np.ndarray) -> Lists:
        """Keep the queries, bool [q], and of these the hits, bool [m]."""
        owners = owners_of(self.starts)
        hits = hits & queries[owners]
        counts = np.bincount(owners[hits], minlength=len(queries))[queries]
        kept = self.features[hits], self.labels[hits], starts_of(counts)
        return Lists(*kept, self.folds[queries], self.hit_folds[hits])

    def without(self, *folds: int) -> Lists:
        """Leave out the queries of these folds, and their questions among the hits of others."""
        return self.select(~np.isin(self.folds, folds), ~np.isin(self.hit_folds, folds))


class Size(NamedTuple):
    """The size of a forest: the most leaves of a tree, and the number of trees."""

    leaves: int
    trees: int


class Forests(NamedTuple):
    """A forest for each fold, fitted to the other folds, and one fitted to all queries.

    forests, sizes: of each fold, then of all queries (the shipped one). importances: float64 [f],
    the share of each feature in the total gain of the splits of the shipped trees.
    """

    forests: list[Forest]
    sizes: list[Size]
    importances: np.ndarray


def require_lightgbm() -> Any:
    """Import lightgbm; UserError if it, or the system library that it needs, is missing."""
    try:
        import lightgbm
    except (ImportError, OSError) as error:
        raise UserError(
            f"the trees of the re-ranker need lightgbm, which could not be loaded ({error})",
            setting="rerank.kind",
            remedy="install it, and the system's libgomp.so.1 (on Debian the package libgomp1), or "
            "set {rerank.kind=none}",
        ) from error
    return lightgbm


def assign_folds(clusters: np.ndarray, seed: int) -> np.ndarray:
    """Assign queries to folds, int64 [q], at random; a cluster is in one fold."""
    distinct, at = np.unique(clusters, return_inverse=True)
    return np.random.default_rng([seed, 1]).permutation(len(distinct))[at] % FOLDS


def learnable(labels: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Which queries say how to order hits, those with a relevant one and another: bool [q].

    labels: int8 [m], 1 where a hit is relevant. starts: int64 [q + 1].
    """
    counts = np.diff(starts)
    relevant = np.bincount(owners_of(starts), labels, len(counts))
    return (relevant > 0) & (relevant < counts)


def suffices(lists: Lists) -> bool:
    """Whether there are enough learnable queries, and some are left without any two folds."""
    parts = (lists.without(*pair) for pair in itertools.combinations(range(FOLDS), 2))
    enough = learnable(lists.labels, lists.starts).sum() >= MIN_QUERIES
    return bool(enough) and all(learnable(part.labels, part.starts).any() for part in parts)


def cross_fit_forests(lists: Lists, seed: int) -> Forests:
    """Choose the size of the forest for each fold, and fit all forests.

    Each forest is fitted by one thread, several forests at a time, so that the result does not
    depend on the number of threads.
    """
    most = len(lists.folds) // _QUERIES_PER_TREE
    stages = [count for count in TREES if count <= max(most, TREES[0])]
    every = np.ones(len(lists.labels), bool)

    def measure(leaves: int, fold: int) -> np.ndarray:
        """Sum the reciprocal ranks of two folds by trees fitted to the others: [2, stages]."""
        pair = (fold, (fold + 1) % FOLDS)
        booster = _fit(lists.without(*pair), Size(leaves, stages[-1]), seed)
        of_folds = [lists.select(lists.folds == fold, every) for fold in pair]
        return np.stack([_staged_sums(booster, stages, known) for known in of_folds])

    jobs = [*itertools.product(LEAVES, range(FOLDS))]
    sums = np.zeros((FOLDS, len(LEAVES), len(stages)))
    for (leaves, fold), measured in zip(jobs, parallel(measure, jobs), strict=True):
        # The size for one of the two folds is chosen by the score of the other: neither was trained
        # on.
        row = LEAVES.index(leaves)
        sums[(fold + 1) % FOLDS, row] += measured[0]
        sums[fold, row] += measured[1]
    sizes = [_best_size(found) for found in [*sums, sums.sum(axis=0)]]

    def fit(fold: int, size: Size) -> Any:
        return _fit(lists.without(fold), size, seed)

    boosters = parallel(fit, [*enumerate(sizes)])  # the last fold has no queries
    gains = boosters[-1].feature_importance("gain")
    forests = [_forest(booster) for booster in boosters]
    return Forests(forests, sizes, gains / max(gains.sum(), 1e-30))


def reciprocal_ranks(scores: np.ndarray, labels: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Compute 1 / rank of the first relevant hit of each query, 0 beyond 20: float64 [q]."""
    of_query = owners_of(starts)
    order = np.lexsort((-scores, of_query))
    ranks = np.arange(len(scores)) - np.repeat(starts[:-1], np.diff(starts)) + 1
    gains = np.where((labels[order] > 0) & (ranks <= _DEPTH), 1 / ranks, 0)
    found = np.zeros(len(starts) - 1)
    np.maximum.at(found, of_query, gains)
    return found


def _fit(lists: Lists, size: Size, seed: int) -> Any:
    """Fit trees to the queries with both relevant and other hits."""
    lightgbm = require_lightgbm()
    useful = learnable(lists.labels, lists.starts)
    lists = lists.select(useful, np.ones(len(lists.labels), bool))
    settings = {
        "objective": "lambdarank",
        "lambdarank_truncation_level": _TRUNCATION,
        "num_leaves": size.leaves,
        "learning_rate": 0.1,
        "min_data_in_leaf": 50,
        "num_threads": 1,
        "deterministic": True,
        "force_col_wise": True,
        "seed": seed % (1 << 31),
        "verbose": -1,
    }
    data = lightgbm.Dataset(lists.features, lists.labels, group=np.diff(lists.starts))
    return lightgbm.train(settings, data, size.trees)


def _forest(booster: Any) -> Forest:
    return parse_forest(booster.dump_model()["tree_info"])


def _staged_sums(booster: Any, stages: Sequence[int], lists: Lists) -> np.ndarray:
    """Sum the reciprocal ranks of the queries after each number of trees: [stages]."""
    trees = booster.dump_model()["tree_info"]
    scores, found = np.zeros(len(lists.features)), []
    for first, last in itertools.pairwise((0, *stages)):
        scores += predict(parse_forest(trees[first:last]), lists.features)
        found.append(reciprocal_ranks(scores, lists.labels, lists.starts).sum())
    return np.array(found)


def _best_size(sums: np.ndarray) -> Size:
    """Return the size with the largest of `sums`, [LEAVES, stages]; ties go to the smallest."""
    leaves, trees = np.unravel_index(np.argmax(sums), sums.shape)
    return Size(LEAVES[leaves], TREES[trees])


def parallel(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Run `function(*job)` for each job, a thread for each core; results in order."""
    pool = concurrent.futures.ThreadPoolExecutor(cpu_count())
    try:
        return [*pool.map(lambda job: function(*job), jobs)]
    finally:
        pool.shutdown(cancel_futures=True)  # else Ctrl-C would wait for all jobs
