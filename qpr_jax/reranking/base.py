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
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Score the hits of q queries.

        Args:
          queries: q texts.
          questions: the m texts of the hits; those of a query are contiguous.
          distances: float32 [m].
          starts: int64 [q + 1]; the hits of query i are starts[i] to starts[i + 1].

        Returns:
          Features, float32 [m, f]; raw scores, float64 [m], which give the order; and the
          probabilities that both mean the same, float64 [m], NaN if unknown.
        """

    def rerank(self, queries: Sequence[str], hits: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
        """Sort the first hits of each query by raw score; the others follow in their old order.

        `Hit.score` is the probability that the two mean the same; None for the others. A hit whose
        text equals the query is first.
        """
        first = [found[: self.candidates] for found in hits]
        starts = starts_of(np.array([*map(len, first)], np.int64))
        flat = [hit for found in first for hit in found]
        _, scores, known, distances = self._score(queries, flat, starts)
        probabilities = _none_if_unknown(known)
        order = rank_hits(scores, distances, [hit.id for hit in flat], starts).tolist()
        ordered = []
        for found, (start, stop) in zip(hits, itertools.pairwise(starts.tolist()), strict=True):
            best = []
            for at in order[start:stop]:
                id, question, distance, _, payload = flat[at]
                best.append(Hit(id, question, distance, probabilities[at], payload))
            rest = [hit._replace(score=None) for hit in found[self.candidates :]]
            ordered.append(best + rest)
        return ordered

    def explain(self, query: str, hits: Sequence[Hit]) -> list[dict[str, float | None]]:
        """Return the features, `score` (raw) and `probability` of each hit, in the order given.

        `hits` are all that `rerank` would reorder: a feature may depend on all of them.
        """
        features, scores, known, _ = self._score([query], hits, np.array([0, len(hits)]))
        explained: list[dict[str, float | None]] = []
        rows = zip(features.tolist(), scores.tolist(), _none_if_unknown(known), strict=True)
        for row, score, probability in rows:
            parts = dict(zip(self.features, row, strict=True))
            explained.append({**parts, "score": score, "probability": probability})
        return explained

    def _score(
        self, queries: Sequence[str], hits: Sequence[Hit], starts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Score hits, equal texts highest; also returns the distances, float32 [m]."""
        questions = [hit.question for hit in hits]
        distances = np.array([hit.distance for hit in hits], np.float32)
        features, scores, probabilities = self.score(queries, questions, distances, starts)
        copies = find_copies(queries, questions, starts)
        scores[copies] = np.inf
        probabilities[copies & ~np.isnan(probabilities)] = 1
        return features, scores, probabilities, distances


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


def _none_if_unknown(probabilities: np.ndarray) -> list[float | None]:
    """Replace the NaN of unknown probabilities, float64 [m], by None."""
    return [None if p != p else p for p in probabilities.tolist()]


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
