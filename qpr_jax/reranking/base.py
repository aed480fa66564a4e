"""Re-rankers: a second stage, which reorders the first hits of a search."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Self

import numpy as np

from qpr_jax.ids import Id, order_key
from qpr_jax.index.base import Hit
from qpr_jax.text.cleaning import clean

# Which second stage a search uses: False: none; None: the light re-ranker if there is one.
Rerank = Literal[False, "light", "cross_encoder"] | None


class TextLists(NamedTuple):
    """The texts of q queries and of their m hits; the hits of a query are contiguous."""

    queries: Sequence[str]
    questions: Sequence[str]
    distances: np.ndarray  # float32 [m]
    starts: np.ndarray  # int64 [q + 1], the hits of query i are starts[i] to starts[i + 1]

    @classmethod
    def of(
        cls,
        queries: Sequence[str],
        hits: Sequence[Sequence[Hit]],
        shared: Mapping[str, int] | None = None,
    ) -> Self:
        """Take the texts as an index encodes them, and the distances; `shared` as of its store."""
        flat = [hit for found in hits for hit in found]
        distances = np.array([hit.distance for hit in flat], np.float32)
        starts = starts_of(np.array([*map(len, hits)], np.int64))
        texts = [clean(hit.question, shared) for hit in flat]
        return cls([clean(query, shared) for query in queries], texts, distances, starts)

    def pairs(self) -> list[tuple[str, str]]:
        """Pair each hit with its query."""
        owners = owners_of(self.starts).tolist()
        return [(self.queries[i], hit) for i, hit in zip(owners, self.questions, strict=True)]

    def copies(self) -> np.ndarray:
        """Return which hits have the text of their query, bool [m]."""
        return np.array([query == question for query, question in self.pairs()], bool)


class Reranker(abc.ABC):
    """A second stage; safe to use from several threads."""

    candidates: int  # the number of first-stage hits that it reorders
    features: tuple[str, ...] = ()  # the names of what it computes of a hit

    @abc.abstractmethod
    def score(self, lists: TextLists) -> tuple[np.ndarray, np.ndarray]:
        """Compute features, float32 [m, f], and raw scores, float64 [m], which give the order."""

    def rerank(
        self,
        queries: Sequence[str],
        hits: Sequence[Sequence[Hit]],
        shared: Mapping[str, int] | None = None,
    ) -> list[list[Hit]]:
        """Sort the first hits of each query by raw score; the others follow in their old order.

        A hit whose text equals the query is first. shared: as of `TextLists.of`.
        """
        first = [found[: self.candidates] for found in hits]
        flat = [hit for found in first for hit in found]
        lists = TextLists.of(queries, first, shared)
        _, scores = self.score_copies(lists)
        order = rank_hits(scores, lists.distances, [hit.id for hit in flat], lists.starts).tolist()
        bounds = itertools.pairwise(lists.starts.tolist())
        return [
            [*(flat[at] for at in order[start:stop]), *found[self.candidates :]]
            for found, (start, stop) in zip(hits, bounds, strict=True)
        ]

    def score_copies(self, lists: TextLists) -> tuple[np.ndarray, np.ndarray]:
        """As `score`, but a hit with the text of its query has the highest score."""
        features, scores = self.score(lists)
        scores[lists.copies()] = np.inf
        return features, scores


def rank_hits(
    scores: np.ndarray, distances: np.ndarray, ids: Sequence[Id] | np.ndarray, starts: np.ndarray
) -> np.ndarray:
    """Sort the hits of each query, best first: a permutation of 0, ..., m - 1, int64 [m].

    Ties go by distance, then by id, numbers before strings, so the result does not depend on the
    order given. All arguments are [m], except `starts`, as of `TextLists`.
    """
    if not isinstance(ids, np.ndarray):
        place = {key: rank for rank, key in enumerate(sorted({*map(order_key, ids)}))}
        ids = np.array([place[order_key(value)] for value in ids], np.int64)
    return np.lexsort((ids, distances, -scores, owners_of(starts)))


def owners_of(starts: np.ndarray) -> np.ndarray:
    """Return the query of each hit, int64 [m]; `starts` as of `TextLists`."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def starts_of(counts: np.ndarray) -> np.ndarray:
    """Return where each of q lists begins, int64 [q + 1], from their lengths, int [q]."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
