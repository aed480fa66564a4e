"""Re-rankers: a second stage, which reorders the first hits of a search."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from qpr_jax.ids import Id, id_key
from qpr_jax.index.base import Hit

# Which second stage a search uses: False: none; None: the light re-ranker if there is one.
Rerank = Literal[False, "light", "cross_encoder"] | None


class Lists(NamedTuple):
    """The hits of q queries; those of a query are contiguous.

    Attributes:
      queries: int64 [q], rows of the queries among all texts.
      starts: int64 [q + 1]; the hits of query i are starts[i] to starts[i + 1].
      rows: int64 [m], rows of the hits.
      distances: float32 [m].
    """

    queries: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    distances: np.ndarray

    @property
    def owners(self) -> np.ndarray:
        """The query of each hit, 0 to q - 1: int64 [m]."""
        return owners_of(self.starts)

    def select(self, kept: np.ndarray) -> Lists:
        """Keep some hits, bool [m]."""
        counts = np.bincount(self.owners[kept], minlength=len(self.queries))
        return Lists(self.queries, starts_of(counts), self.rows[kept], self.distances[kept])


class Reranker(abc.ABC):
    """A second stage; safe to use from several threads.

    Attributes:
      candidates: the number of first-stage hits that it reorders.
      features: the names of what it computes of a hit.
    """

    candidates: int
    features: tuple[str, ...] = ()

    @abc.abstractmethod
    def score(
        self,
        queries: Sequence[str],
        questions: Sequence[str],
        distances: np.ndarray,
        starts: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Score the hits of q queries.

        Args:
          queries: q texts.
          questions: the m texts of the hits; those of a query are contiguous.
          distances: float32 [m].
          starts: int64 [q + 1]; the hits of query i are starts[i] to starts[i + 1].

        Returns:
          Features, float32 [m, f], and raw scores, float64 [m], which give the order.
        """

    def rerank(self, queries: Sequence[str], hits: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
        """Sort the first hits of each query by raw score; the others follow in their old order.

        A hit whose text equals the query is first.
        """
        first = [found[: self.candidates] for found in hits]
        starts = starts_of(np.array([*map(len, first)], np.int64))
        flat = [hit for found in first for hit in found]
        _, scores, distances = self._score(queries, flat, starts)
        order = rank_hits(scores, distances, [hit.id for hit in flat], starts).tolist()
        ordered = []
        for found, (start, stop) in zip(hits, itertools.pairwise(starts.tolist()), strict=True):
            best = [flat[at] for at in order[start:stop]]
            ordered.append([*best, *found[self.candidates :]])
        return ordered

    def explain(self, query: str, hits: Sequence[Hit]) -> list[dict[str, float]]:
        """Return the features and `score` (raw) of each hit, in the order given.

        `hits` are all that `rerank` would reorder: a feature may depend on all of them.
        """
        features, scores, _ = self._score([query], hits, np.array([0, len(hits)]))
        return [
            {**dict(zip(self.features, row, strict=True)), "score": score}
            for row, score in zip(features.tolist(), scores.tolist(), strict=True)
        ]

    def _score(
        self, queries: Sequence[str], hits: Sequence[Hit], starts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Score hits, equal texts highest; also returns the distances, float32 [m]."""
        questions = [hit.question for hit in hits]
        distances = np.array([hit.distance for hit in hits], np.float32)
        features, scores = self.score(queries, questions, distances, starts)
        scores[find_copies(queries, questions, starts)] = np.inf
        return features, scores, distances


def rank_hits(
    scores: np.ndarray, distances: np.ndarray, ids: Sequence[Id] | np.ndarray, starts: np.ndarray
) -> np.ndarray:
    """Sort the hits of each query, best first: a permutation of 0, ..., m - 1, int64 [m].

    Ties go by distance, then by id, numbers before strings, so the result does not depend on the
    order given. All arguments are [m], except `starts`, [q + 1]: where the hits of each query
    begin.
    """
    owners = owners_of(starts)
    order = np.lexsort((-scores, owners))
    ordered = scores[order]
    ties = ~(ordered[1:] < ordered[:-1]) & (owners[1:] == owners[:-1])  # NaN, which is last, too
    # The other keys double the time, and are seldom needed.
    return np.lexsort((_ranks(ids), distances, -scores, owners)) if ties.any() else order


def _ranks(ids: Sequence[Id] | np.ndarray) -> np.ndarray:
    """Numbers in the order of ids, int64 [m]; equal for equal ids."""
    if isinstance(ids, np.ndarray):
        return ids
    keys = [*map(id_key, ids)]
    ordered = sorted({*keys}, key=lambda key: (isinstance(key, str), key))
    place = {key: rank for rank, key in enumerate(ordered)}
    return np.array([place[key] for key in keys], np.int64)


def owners_of(starts: np.ndarray) -> np.ndarray:
    """Return the query of each hit, int64 [m]; `starts`, int64 [q + 1], as of `Reranker.score`."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def starts_of(counts: np.ndarray) -> np.ndarray:
    """Return where each of q lists begins, int64 [q + 1], from their lengths, int [q]."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def pair_texts(
    queries: Sequence[str], questions: Sequence[str], starts: np.ndarray
) -> list[tuple[str, str]]:
    """Pair each hit with its query."""
    owners = owners_of(starts).tolist()
    return [(queries[i], question) for i, question in zip(owners, questions, strict=True)]


def find_copies(queries: Sequence[str], questions: Sequence[str], starts: np.ndarray) -> np.ndarray:
    """Return which hits have the text of their query, bool [m]."""
    copies = np.zeros(len(questions), bool)
    for query, (start, stop) in zip(queries, itertools.pairwise(starts.tolist()), strict=True):
        if query in (own := questions[start:stop]):
            copies[start:stop] = [question == query for question in own]
    return copies
