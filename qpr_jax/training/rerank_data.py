"""The training data of a re-ranker: queries, their hits, features of these, and which are relevant.

The `Lists` have rows among the Q questions of a run, and no query among its own hits.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpr_jax.data.splits import TRAIN, VALIDATION
from qpr_jax.evaluation.retrieval import RankFn, exact_search, rank
from qpr_jax.index.vectors import distances_to
from qpr_jax.reranking.base import TextLists, owners_of, starts_of
from qpr_jax.reranking.cross_encoder import CrossEncoder
from qpr_jax.reranking.feature_loops import MOST
from qpr_jax.reranking.features import FEATURES, FeatureExtractor
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.evaluator import sample_questions
from qpr_jax.training.teacher import cached_rows, neighbors

log = logging.getLogger(__name__)

FOLDS = 5
MIN_QUERIES = 50  # with both relevant and other hits; fewer are too few to learn from
MAX_QUERIES = 5000  # of a run without labels
PART = 4096  # pairs whose logits are computed together
# The pre-training, on training questions: queries, and hits of each.
PRETRAINED, PRETRAINING_HITS, MIN_PRETRAINED = 20_000, 30, 50


class Lists(NamedTuple):
    """The hits of q queries by number; those of a query are contiguous."""

    queries: np.ndarray  # int64 [q], rows of the queries among all texts
    starts: np.ndarray  # as of `TextLists`
    rows: np.ndarray  # int64 [m], rows of the hits
    distances: np.ndarray  # float32 [m]

    @property
    def owners(self) -> np.ndarray:
        """The query of each hit, 0 to q - 1: int64 [m]."""
        return owners_of(self.starts)

    def select(self, kept: np.ndarray) -> Lists:
        """Keep some hits, bool [m]."""
        counts = np.bincount(self.owners[kept], minlength=len(self.queries))
        return Lists(self.queries, starts_of(counts), self.rows[kept], self.distances[kept])


class Examples(NamedTuple):
    """Hits to learn from: features, float32 [m, f], and labels, int8 [m], 1 where relevant."""

    lists: Lists
    labels: np.ndarray
    features: np.ndarray

    def without(self, folds: np.ndarray, left_out: int) -> Examples:
        """Leave out the queries of a fold, and their questions among the hits of others.

        folds: int64 [Q], of each question.
        """
        lists = self.lists
        kept = (folds[lists.rows] != left_out) & (folds[lists.queries] != left_out)[lists.owners]
        return Examples(lists.select(kept), self.labels[kept], self.features[kept])


@dataclass
class Finder:
    """Finds hits of the Q questions of a run, and computes their features."""

    questions: list[str]
    vectors: np.ndarray  # float32 [Q, d]
    extractor: FeatureExtractor
    candidates: int  # hits of a query
    scorer: CrossEncoder | None = None  # whose logits are the last feature

    def collect(self, found: np.ndarray, queries: np.ndarray) -> Lists:
        """Take the first `candidates` rows of a ranking, int64 [q, k], -1 for none."""
        queries, found = np.asarray(queries, np.int64), found[:, : self.candidates]
        distances = distances_to(self.vectors[queries], self.vectors, found)
        valid = found >= 0
        return Lists(queries, starts_of(valid.sum(axis=1)), found[valid], distances[valid])

    def find(self, queries: np.ndarray) -> Lists:
        """Find the nearest hits of queries, rows int [q], by exact search."""
        return self.collect(rank(exact_search(self.vectors), queries, self.candidates), queries)

    def texts(self, lists: Lists) -> TextLists:
        """The texts of queries and hits."""
        queries = [self.questions[i] for i in lists.queries.tolist()]
        hits = [self.questions[i] for i in lists.rows.tolist()]
        return TextLists(queries, hits, lists.distances, lists.starts)

    def features(self, lists: Lists) -> np.ndarray:
        """Compute the features of hits, float32 [m, f]."""
        texts = self.texts(lists)
        features = self.extractor.compute(texts)
        if self.scorer is None:
            return features
        # The last bits of logits depend on the pairs that are computed together.
        predict = self.scorer.predict
        logits = cached_rows(self.scorer.identity, texts.pairs(), predict, 1, chunk=PART)
        return np.column_stack([features, logits])


def assign_folds(dataset: TrainDataset, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Assign queries to folds at random; a cluster is in one fold.

    Returns the queries, int64 [q]: the members of the validation clusters or, without any, a sample
    of validation questions; and the fold of each question, int64 [Q], -1 for one that is no query.
    """
    held_out = np.flatnonzero(dataset.splits.split_of == VALIDATION)
    queries = held_out[dataset.clusters[held_out] >= 0]
    groups = dataset.clusters[queries]
    if not len(queries):
        queries = groups = sample_questions(dataset, "validation", MAX_QUERIES)
    distinct, at = np.unique(groups, return_inverse=True)
    folds = np.full(len(dataset.data.questions), -1)
    folds[queries] = np.random.default_rng([seed, 1]).permutation(len(distinct))[at] % FOLDS
    return queries, folds


def suffices(lists: Lists, labels: np.ndarray) -> bool:
    """Whether enough queries have a relevant hit, by labels, int8 [m], and another. Logs if not."""
    counts = np.diff(lists.starts)
    relevant = np.bincount(lists.owners, labels, len(counts))
    count = ((relevant > 0) & (relevant < counts)).sum()
    if count < MIN_QUERIES:
        expected = "validation questions or more with a relevant and another question"
        remedy = "raise data.held_out_pairs, or set rerank.candidates=0"
        what = f"expected {MIN_QUERIES} {expected} among their hits, got {count}"
        log.warning("no re-ranker: %s; %s", what, remedy)
    return bool(count >= MIN_QUERIES)


def relevant_hits(dataset: TrainDataset, lists: Lists) -> np.ndarray:
    """Label the hits, int8 [m]: 1 for those of the query's cluster, or the teacher's nearest."""
    if len(dataset.splits.pairs["validation"]):
        queries = lists.queries[lists.owners]
        labels = dataset.clusters[queries] == dataset.clusters[lists.rows]
        return labels.astype(np.int8)
    assert dataset.teacher is not None  # else the settings were refused
    nearest = neighbors(dataset.teacher, len(dataset.data.questions), lists.queries)[:, 0]
    return (nearest[lists.owners] == lists.rows).astype(np.int8)


def pretraining_examples(
    dataset: TrainDataset,
    finder: Finder,
    search: RankFn,
    means: np.ndarray,
    *,
    trained: bool,
    seed: int,
) -> tuple[Examples, np.ndarray] | None:
    """Find training questions, and hits that are such questions; None if they are too few.

    Also returns the rows of the word weights of the hits, int32 [m, MOST].

    means: float32 [f], of the features of validation questions; they replace what is unknown of
      training questions: the logits of a cross-encoder, which would take hours, and, if the
      encoder was `trained` on these questions, the distances, which are too good.
    """
    is_train = dataset.splits.split_of == TRAIN
    queries = np.flatnonzero(is_train)
    if len(dataset.splits.pairs["validation"]):
        queries = queries[dataset.clusters[queries] >= 0]
    if len(queries) < MIN_PRETRAINED:
        return None
    order = np.random.default_rng([seed, 2]).permutation(len(queries))
    chosen = np.sort(queries[order[:PRETRAINED]])
    found = finder.collect(rank(search, chosen, PRETRAINING_HITS), chosen)
    found = found.select(is_train[found.rows])
    rows = np.empty((len(found.rows), MOST), np.int32)
    features = np.tile(means, (len(rows), 1))
    computed = finder.extractor.compute(finder.texts(found), rows)
    for column, name in enumerate(FEATURES):
        if not (trained and name.startswith("distance")):
            features[:, column] = computed[:, column]
    return Examples(found, relevant_hits(dataset, found), features), rows
