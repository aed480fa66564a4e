"""What orders the first hits of a search anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from qpr_jax.index.base import Hit

# The word for a second stage: False is none; None is the light one where there is one.
Rerank = Literal[False, "light", "cross_encoder"] | None


class Reranker(Protocol):
    """A second stage; safe to use from several threads.

    Attributes:
      candidates: how many hits of the first stage it reads.
      lexical_candidates: how many of BM25 it expects beside them; together they are the first hits
        that are ordered anew.
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
        """Score the m hits of q queries, those of one after those of another, in any order.

        Args:
          queries: q texts.
          questions: m texts.
          distances: float32 [m], squared Euclidean.
          starts: int64 [q + 1]; the hits of query i are starts[i] to starts[i + 1].

        Returns:
          Raw scores, by which hits are ordered, and probabilities, NaN where not known: [m] each.
        """
        ...

    def rerank(self, queries: Sequence[str], hits: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
        """Order the first hits of each query by its own score, the others after them as they were.

        `Hit.score` is the probability that the two mean the same; None for the others.
        """
        ...

    def explain(self, query: str, hits: Sequence[Hit]) -> list[dict[str, float]]:
        """The parts of the decision on each hit, in the order given: features, score, probability.

        `hits` are those that `rerank` would order: what a feature says may depend on all of them.
        """
        ...
