"""Hits of the first stage: the negatives for a cross-encoder, and its validation lists."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.data.splits import TRAIN
from qpr_jax.encoders.base import Encoder
from qpr_jax.evaluation.retrieval import DEPTH, exact_search, rank, retrieval_scores
from qpr_jax.files import write_atomically
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.vectors import Vectors
from qpr_jax.reranking.cross_encoder import CrossEncoder
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.sources import SplitData

FILE = "hits.npy"  # in the work directory, so that a resumed run need not search again
_SPARE = 10  # further hits, since some are paraphrases
_BLOCK = 4096  # queries searched at once


class Validation(NamedTuple):
    """Queries of the validation split, and their first-stage hits, which are reordered.

    Attributes:
      queries: int64 [n], rows of questions.
      hits: int64 [n, h], rows of the hits among all questions except the query, nearest first,
        padded with -1.
      clusters: int32 [Q], the cluster of each question.
      pairs: int [P, 2], the pairs of the split whose first question is one of the queries.
    """

    queries: np.ndarray
    hits: np.ndarray
    clusters: np.ndarray
    pairs: np.ndarray

    def sample(self, count: int, seed: int) -> Validation:
        """Draw at most `count` of the queries."""
        order = np.random.default_rng([seed, 2]).permutation(len(self.queries))
        chosen = np.sort(order[:count])
        queries = self.queries[chosen]
        kept = np.isin(self.pairs[:, 0], queries)
        return Validation(queries, self.hits[chosen], self.clusters, self.pairs[kept])

    def scores(self, rankings: np.ndarray | None = None) -> dict[str, float]:
        """Compute H@1 and MRR per query of rankings, int64 [n, h]; None: the first stage's."""
        rankings = self.hits if rankings is None else rankings
        missing = max(0, DEPTH - rankings.shape[1])
        rankings = np.pad(rankings, [(0, 0), (0, missing)], constant_values=-1)
        scores = retrieval_scores(rankings, self.queries, self.pairs, self.clusters)["per_query"]
        return {name: scores[name] for name in ("hits@1", f"mrr@{DEPTH}")}


def find_hits(
    split: SplitData, encoder: Encoder, count: int, folder: pathlib.Path
) -> tuple[np.ndarray, Validation]:
    """Search with the first stage, unless `folder` already has the hits.

    Returns:
      Negatives, int64 [Q, count]: for each clustered training question the nearest training
      questions of other clusters, padded with -1; and the validation queries with `count` hits.
    """
    pairs, clusters = split.splits.pairs["validation"], split.clusters
    queries = np.unique(pairs[:, 0]).astype(np.int64)
    path = folder / FILE
    if not path.exists():
        vectors = encoder.encode(split.data.questions)
        negatives = _negatives(split, vectors, count)
        found = rank(exact_search(vectors), queries, count)
        with write_atomically(path) as file:
            np.save(file, np.concatenate([negatives, found]).astype(np.int32))
    every = np.load(path).astype(np.int64)
    return every[: len(clusters)], Validation(queries, every[len(clusters) :], clusters, pairs)


def rerank_scores(
    model: CrossEncoder, questions: Sequence[str], validation: Validation
) -> tuple[dict[str, float], np.ndarray]:
    """Compute `Validation.scores` sorted by logit; also returns the logits, [n, h], -inf: none."""
    queries, hits = validation.queries, validation.hits
    logits = np.full(hits.shape, -np.inf)
    found = np.argwhere(hits >= 0)
    rows = zip(queries[found[:, 0]].tolist(), hits[hits >= 0].tolist(), strict=True)
    logits[hits >= 0] = model.predict([(questions[a], questions[b]) for a, b in rows])
    order = np.argsort(-logits, axis=1, kind="stable")
    return validation.scores(np.take_along_axis(hits, order, axis=1)), logits


def _negatives(split: SplitData, vectors: np.ndarray, count: int) -> np.ndarray:
    """Find the negatives of `find_hits`; leaves out hits with the same words as the query."""
    clusters = split.clusters
    trained = np.flatnonzero(split.splits.split_of == TRAIN)
    queries = trained[clusters[trained] >= 0]
    index = Vectors.build(Recipe(), vectors[trained])
    numbers: dict[str, int] = {}
    words = [normalized_text(question) for question in split.data.questions]
    text_of = np.array([numbers.setdefault(text, len(numbers)) for text in words])
    found = np.full((len(clusters), count), -1, np.int64)
    for start in range(0, len(queries), _BLOCK):
        rows = queries[start : start + _BLOCK]
        hits = index.search(vectors[rows], min(count + _SPARE, len(trained)))[1]
        hits = np.where(hits < 0, -1, trained[hits])
        same = (hits < 0) | (clusters[hits] == clusters[rows][:, None])
        same |= text_of[hits] == text_of[rows][:, None]
        others = np.take_along_axis(hits, np.argsort(same, axis=1, kind="stable"), axis=1)
        others[np.sort(same, axis=1)] = -1
        found[rows, : others.shape[1]] = others[:, :count]
    return found
