"""Exact nearest neighbours by comparing every query with every vector."""

from __future__ import annotations

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
    """

    def __init__(self, queries: np.ndarray, k: int, metric: str = "l2") -> None:
        self.queries, self.k, self.metric = queries, k, metric
        self.distances = np.full((len(queries), k), np.inf, np.float32)
        self.rows = np.full((len(queries), k), -1, np.int64)

    def add(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Take vectors float32 [m, d] into account, which are those of rows int64 [m]."""
        distances, found = exact_top_k(self.queries, vectors, self.k, self.metric)
        self.merge(distances, np.where(found < 0, -1, rows[found]))

    def merge(self, distances: np.ndarray, rows: np.ndarray) -> None:
        """Take candidates into account: distances float32 [n, m] and rows int64 [n, m]."""
        distances = np.concatenate([self.distances, distances], axis=1)
        rows = np.concatenate([self.rows, rows], axis=1)
        order = np.argsort(distances, axis=1, kind="stable")[:, : self.k]
        self.distances = np.take_along_axis(distances, order, axis=1)
        self.rows = np.take_along_axis(rows, order, axis=1)
