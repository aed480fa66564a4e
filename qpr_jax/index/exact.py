"""Exact distances, and exact nearest neighbors by comparing every query with every vector."""

from __future__ import annotations

import faiss
import numpy as np

from qpr_jax.machine import one_thread_after_fork

one_thread_after_fork(faiss.omp_set_num_threads)
FAISS_METRICS = {"l2": faiss.METRIC_L2, "ip": faiss.METRIC_INNER_PRODUCT}
_CHUNK = 65_536  # vectors that are compared at once
_PART = 4_000_000  # numbers of candidates in memory at once


def exact_top_k(
    queries: np.ndarray, vectors: np.ndarray, k: int, metric: str = "l2"
) -> tuple[np.ndarray, np.ndarray]:
    """Find the `k` nearest vectors of each query, nearest first.

    Args:
      queries: float32 [n, d].
      vectors: float32 or float16 [m, d], in memory or memory-mapped.
      k: 1 or more.
      metric: "l2" (squared Euclidean distance) or "ip" (the inner product times -1).

    Returns:
      Distances float32 [n, k] and rows of `vectors` int64 [n, k]; inf and -1 beyond m.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    found = (np.full((len(queries), 0), np.inf, np.float32), np.zeros((len(queries), 0), np.int64))
    # FAISS compares batches by products, which lose precision for vectors far from the origin.
    products = len(queries) >= faiss.cvar.distance_compute_blas_threshold
    center = vectors[:_CHUNK].mean(axis=0, dtype=np.float32) if products and len(vectors) else 0
    for start in range(0, len(vectors) if len(queries) else 0, _CHUNK):
        chunk = np.ascontiguousarray(vectors[start : start + _CHUNK], np.float32)
        near = queries
        if products and metric == "l2":
            chunk, near = chunk - center, queries - center
        distances, rows = faiss.knn(near, chunk, min(k, len(chunk)), metric=FAISS_METRICS[metric])
        found = nearest(k, found, (distances if metric == "l2" else -distances, rows + start))
    distances = distances_to(queries, vectors, found[1], metric)
    return nearest(k, (distances, found[1]))


def distances_to(
    queries: np.ndarray, vectors: np.ndarray, rows: np.ndarray, metric: str = "l2"
) -> np.ndarray:
    """Compute the distances float32 [n, c] of queries [n, d] to rows int64 [n, c] of vectors.

    Squared distances are computed by subtraction, so that small ones are exact. Row -1 is at inf.
    """
    distances = np.full(rows.shape, np.inf, np.float32)
    if not len(vectors) or not rows.size:
        return distances
    if vectors.dtype == np.float32 and vectors.flags.c_contiguous:
        queries, rows = np.ascontiguousarray(queries, np.float32), np.ascontiguousarray(rows)
        pointers = map(faiss.swig_ptr, (distances, queries, vectors, rows))
        arguments = [*pointers, queries.shape[1], *rows.shape]
        if metric == "l2":
            faiss.fvec_L2sqr_by_idx(*arguments)
            return distances
        faiss.fvec_inner_products_by_idx(*arguments)
        return -distances
    size = max(1, _PART // (rows.shape[1] * queries.shape[1]))
    for start in range(0, len(rows), size):
        part, own = rows[start : start + size], queries[start : start + size]
        candidates = vectors[np.maximum(part, 0)].astype(np.float32)
        if metric == "l2":
            candidates -= own[:, None]
            distances[start : start + size] = np.einsum("ncd,ncd->nc", candidates, candidates)
        else:
            distances[start : start + size] = -np.einsum("ncd,nd->nc", candidates, own)
    distances[rows < 0] = np.inf
    return distances


def pair_distances(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compute squared distances float32 [P] of pairs of rows of float32 [N, d] by subtraction."""
    distances = np.empty(len(first), np.float32)
    for start in range(0, len(first), _CHUNK):
        part = slice(start, start + _CHUNK)
        apart = np.asarray(vectors[first[part]]) - np.asarray(vectors[second[part]])
        distances[part] = np.einsum("pd,pd->p", apart, apart)
    return distances


def nearest(k: int, *found: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the `k` nearest of candidates: distances [n, k] and rows [n, k], padded with inf, -1.

    found: distances [n, c] and rows [n, c]; of equal distances the first are kept.
    """
    distances, rows = found[0]
    if len(found) > 1:
        distances = np.concatenate([part[0] for part in found], axis=1)
        rows = np.concatenate([part[1] for part in found], axis=1)
    if (missing := k - distances.shape[1]) > 0:
        distances = np.pad(distances, ((0, 0), (0, missing)), constant_values=np.inf)
        rows = np.pad(rows, ((0, 0), (0, missing)), constant_values=-1)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, 1), np.take_along_axis(rows, order, 1)
