"""The interface of re-rankers: a second stage, which reorders the first hits of a search."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np

from qpr_jax.ids import Id, id_key
from qpr_jax.index.base import Hit

# Which second stage a search uses: False: none; None: the light re-ranker if there is one.
Rerank = Literal[False, "light", "cross_encoder"] | None

# (queries, questions, distances, starts) -> raw scores, which give the order, and probabilities,
# NaN if unknown, float64 [m] each. Of m questions those from starts[i] to starts[i + 1] are the
# hits of query i; distances: float32 [m]; starts: int64 [q + 1].
Score = Callable[
    [Sequence[str], Sequence[str], np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]
]


class Reranker(Protocol):
    """A second stage; safe to use from several threads.

    Attributes:
      candidates: the number of first-stage hits that it reorders.
    """

    candidates: int

    def rerank(self, queries: Sequence[str], hits: list[list[Hit]]) -> list[list[Hit]]:
        """Sort the first hits of each query by raw score; the others follow in their old order.

        `Hit.score` is the probability that the two mean the same; None for the others.
        """
        ...

    def explain(self, query: str, hits: Sequence[Hit]) -> list[dict[str, float | None]]:
        """Return the features, `score` (raw) and `probability` of each hit, in the order given.

        `hits` are all that `rerank` would reorder: a feature may depend on all of them.
        """
        ...


def reorder(
    score: Score, candidates: int, queries: Sequence[str], hits: Sequence[Sequence[Hit]]
) -> list[list[Hit]]:
    """Implement `Reranker.rerank` by a function of texts."""
    first = [found[:candidates] for found in hits]
    starts = starts_of(np.array([*map(len, first)], np.int64))
    flat = [hit for found in first for hit in found]
    texts, distances = texts_and_distances(flat)
    scores, known = score(queries, texts, distances, starts)
    probabilities = none_if_unknown(known)
    order = rank_hits(scores, distances, [hit.id for hit in flat], starts).tolist()
    ordered = []
    for found, (start, stop) in zip(hits, itertools.pairwise(starts.tolist()), strict=True):
        best = []
        for at in order[start:stop]:
            id, question, distance, _, payload = flat[at]
            best.append(Hit(id, question, distance, probabilities[at], payload))
        rest = [hit._replace(score=None) for hit in found[candidates:]]
        ordered.append(best + rest)
    return ordered


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


def texts_and_distances(hits: Sequence[Hit]) -> tuple[list[str], np.ndarray]:
    """Return the texts of m hits, and their distances, float32 [m]."""
    return [hit.question for hit in hits], np.array([hit.distance for hit in hits], np.float32)


def owners_of(starts: np.ndarray) -> np.ndarray:
    """Return the query of each hit, int64 [m]; `starts`, int64 [q + 1], as of `Score`."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def starts_of(counts: np.ndarray) -> np.ndarray:
    """Return where each of q lists begins, int64 [q + 1], from their lengths, int [q]."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def none_if_unknown(probabilities: np.ndarray) -> list[float | None]:
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
