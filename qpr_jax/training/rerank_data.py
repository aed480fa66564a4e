"""The training data of a re-ranker: queries, their hits, and which of these are relevant."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from qpr_jax.data.splits import TRAIN, VALIDATION
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import exact_search
from qpr_jax.reranking.base import owners_of, starts_of
from qpr_jax.reranking.feature_loops import MOST
from qpr_jax.reranking.features import FEATURES
from qpr_jax.training.candidates import Candidates, Finder
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.teacher import neighbors

FOLDS = 5
MIN_QUERIES = 50  # with both relevant and other hits; fewer are too few to learn from
MAX_QUERIES = 5000  # of a run without labels
# The pre-training, on training questions: queries, and hits of each.
PRETRAINED, PRETRAINING_HITS, MIN_PRETRAINED = 20_000, 30, 50
_DEPTH = 20  # of MRR


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


def reciprocal_ranks(scores: np.ndarray, labels: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Compute 1 / rank of the first relevant hit of each query, 0 beyond 20: float64 [q]."""
    of_query = owners_of(starts)
    order = np.lexsort((-scores, of_query))
    ranks = np.arange(len(scores)) - np.repeat(starts[:-1], np.diff(starts)) + 1
    gains = np.where((labels[order] > 0) & (ranks <= _DEPTH), 1 / ranks, 0)
    found = np.zeros(len(starts) - 1)
    np.maximum.at(found, of_query, gains)
    return found


def training_queries(dataset: TrainDataset) -> tuple[np.ndarray, np.ndarray]:
    """Choose the queries: their rows, int64 [q], and their groups for the folds, int64 [q].

    They are the members of the validation clusters or, without clusters, a sample of the validation
    questions, each a group.
    """
    held_out = np.flatnonzero(dataset.splits.split_of == VALIDATION)
    clustered = held_out[_in_clusters(dataset, held_out)]
    if len(clustered):
        return clustered, dataset.clusters[clustered]
    sample = np.random.default_rng(0).permutation(held_out)[:MAX_QUERIES]
    return np.sort(sample), np.sort(sample)


def _in_clusters(dataset: TrainDataset, rows: np.ndarray) -> np.ndarray:
    """Return which of these questions have a known paraphrase, bool [n]."""
    clusters = dataset.clusters
    sizes = np.bincount(clusters[clusters >= 0], minlength=1)
    return (clusters[rows] >= 0) & (sizes[np.maximum(clusters[rows], 0)] > 1)


def relevant_hits(dataset: TrainDataset, lists: Candidates) -> np.ndarray:
    """Label the hits, int8 [m]: 1 if a hit means the same as its query, else 0.

    Relevant are those of its cluster or, without clusters, the nearest one by the teacher.
    """
    queries = lists.queries[lists.owners]
    if len(dataset.splits.pairs["validation"]):
        labels = dataset.clusters[queries] == dataset.clusters[lists.rows]
    else:
        if dataset.teacher is None:
            raise UserError(
                "expected clusters or a teacher to learn from, got neither",
                setting="rerank.candidates",
                remedy="set it to 0, or name a teacher by `teacher.model`",
            )
        nearest = neighbors(dataset.teacher, len(dataset.data.questions), lists.queries)[:, 0]
        labels = nearest[lists.owners] == lists.rows
    return labels.astype(np.int8)


def pretraining_lists(
    dataset: TrainDataset,
    finder: Finder,
    vectors: np.ndarray,
    means: np.ndarray,
    *,
    trained: bool,
    seed: int,
) -> tuple[Lists, np.ndarray] | None:
    """Find training questions, and hits that are such questions; None if they are too few.

    Also returns the rows of the word weights of the hits, int32 [m, MOST].

    Args:
      vectors: float32 [Q, d], of all questions.
      means: float32 [f], of the features of validation questions; they replace what is unknown of
        training questions: the logits of a cross-encoder, which would take hours, and, if the
        encoder was `trained` on these questions, the distances, which are too good.
    """
    is_train = dataset.splits.split_of == TRAIN
    queries = np.flatnonzero(is_train)
    if len(dataset.splits.pairs["validation"]):
        queries = queries[_in_clusters(dataset, queries)]
    if len(queries) < MIN_PRETRAINED:
        return None
    order = np.random.default_rng([seed, 2]).permutation(len(queries))
    queries = np.sort(queries[order[:PRETRAINED]])
    found = finder.find(exact_search(vectors), queries, PRETRAINING_HITS)
    found = found.select(is_train[found.rows])
    rows = np.empty((len(found.rows), MOST), np.int32)
    features = finder.features(found, logits=False, rows=rows)
    unknown = np.arange(len(means)) >= len(FEATURES)
    if trained:
        unknown[: len(FEATURES)] = [name.startswith("distance") for name in FEATURES]
    features[:, unknown] = means[unknown]
    no_folds = np.zeros(len(queries), np.int64), np.full(len(found.rows), -1)
    return Lists(features, relevant_hits(dataset, found), found.starts, *no_folds), rows
