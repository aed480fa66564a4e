"""The interface of re-rankers: a second stage, which reorders the first hits of a search."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from qpr_jax.index.base import Hit

# Which second stage a search uses: False: none; None: the light re-ranker if there is one.
Rerank = Literal[False, "light", "cross_encoder"] | None


class Reranker(Protocol):
    """A second stage; safe to use from several threads.

    Attributes:
      candidates: the number of first-stage hits that it reorders.
      lexical_candidates: the number of BM25 hits that it reorders with them.
    """

    candidates: int
    lexical_candidates: int

    def score(
        self,
        queries: Sequence[str],
        questions: Sequence[str],
        distances: np.ndarray,
        starts: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Score the m hits of q queries; the hits of a query are contiguous, in any order.

        Args:
          queries: q texts.
          questions: m texts.
          distances: float32 [m], squared Euclidean.
          starts: int64 [q + 1]; the hits of query i are starts[i] to starts[i + 1].

        Returns:
          Raw scores, which give the order, and probabilities, NaN if unknown: float64 [m] each.
        """
        ...

    def rerank(self, queries: Sequence[str], hits: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
        """Sort the first hits of each query by raw score; the others follow in their old order.

        `Hit.score` is the probability that the two mean the same; None for the others.
        """
        ...

    def explain(self, query: str, hits: Sequence[Hit]) -> list[dict[str, float]]:
        """Return the features, raw score and probability of each hit, in the order given.

        `hits` are all that `rerank` would reorder: a feature may depend on all of them.
        """
        ...


def owners_of(starts: np.ndarray) -> np.ndarray:
    """Return the query of each hit, int64 [m]; `starts`, int64 [q + 1], as of `Reranker.score`."""
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
