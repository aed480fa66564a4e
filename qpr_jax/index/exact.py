"""Exact nearest neighbors by comparing every query with every vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import numpy as np

FAISS_METRICS = {"l2": faiss.METRIC_L2, "ip": faiss.METRIC_INNER_PRODUCT}


def exact_top_k(
    queries: np.ndarray, vectors: np.ndarray, k: int, metric: str = "l2"
) -> tuple[np.ndarray, np.ndarray]:
    """Find the `k` nearest vectors of each query, nearest first.

    Args:
      queries: float32 [n, d].
      vectors: float32 [m, d].
      k: 1 or more.
      metric: "l2" (squared Euclidean distance) or "ip" (the inner product times -1).

    Returns:
      Distances float32 [n, k] and rows of `vectors` int64 [n, k]; inf and -1 beyond m.
    """
    distances = np.full((len(queries), k), np.inf, np.float32)
    rows = np.full((len(queries), k), -1, np.int64)
    if (size := min(k, len(vectors))) and len(queries):
        nearest, rows[:, :size] = faiss.knn(queries, vectors, size, metric=FAISS_METRICS[metric])
        distances[:, :size] = nearest if metric == "l2" else -nearest
    return distances, rows


class ExactTopK:
    """The `k` nearest of vectors that arrive in chunks.

    distances, rows: as of `exact_top_k`, of the vectors so far. Of equal distances, those that
    came first.

    tie_key: row -> key; of the rows as far as the k-th, those with the largest keys are kept.
    """

    def __init__(
        self,
        queries: np.ndarray,
        k: int,
        metric: str = "l2",
        tie_key: Callable[[int], Any] | None = None,
    ) -> None:
        self.queries, self.k, self.metric, self.tie_key = queries, k, metric, tie_key
        self.distances = np.full((len(queries), k), np.inf, np.float32)
        self.rows = np.full((len(queries), k), -1, np.int64)

    def add(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Take vectors float32 [m, d] into account, which are those of rows int64 [m]."""
        distances, found = exact_top_k(self.queries, vectors, self.k, self.metric)
        self.merge(distances, np.where(found < 0, -1, rows[found]))

    def merge(
        self, distances: np.ndarray, rows: np.ndarray, queries: slice | np.ndarray = slice(None)
    ) -> None:
        """Take candidates into account.

        Args:
          distances: float32 [n, m].
          rows: int64 [n, m].
          queries: those that the candidates belong to; all by default.
        """
        distances = np.concatenate([self.distances[queries], distances], axis=1)
        rows = np.concatenate([self.rows[queries], rows], axis=1)
        order = np.argsort(distances, axis=1, kind="stable")
        distances = np.take_along_axis(distances, order, axis=1)
        rows = np.take_along_axis(rows, order, axis=1)
        if self.tie_key is not None:
            kth, next_one = distances[:, self.k - 1], distances[:, self.k]
            for query in np.flatnonzero((kth == next_one) & np.isfinite(kth)):
                tied = np.flatnonzero(distances[query] == kth[query])
                rows[query, tied] = sorted(
                    rows[query, tied].tolist(), key=self.tie_key, reverse=True
                )
        self.distances[queries], self.rows[queries] = distances[:, : self.k], rows[:, : self.k]


def recall_of(queries: np.ndarray, exact: np.ndarray, found: np.ndarray, count: int) -> float:
    """The share of the `count` nearest other rows that are among those found, int64 [n, k] each.

    queries: int64 [n], the row of each query, which is no other row.
    """
    shares = []
    for query, nearest, rows in zip(queries, exact.tolist(), found.tolist(), strict=True):
        others = [row for row in nearest if row not in (query, -1)][:count]
        if not others:
            return 1.0  # one row has no others
        shares.append(sum(row in rows for row in others) / len(others))
    return float(np.mean(shares))
