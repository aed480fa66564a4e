"""Scores of rankings, one for each query, as plain functions of arrays.

In all of them `relevance` is bool [n, K]: whether each of the K questions retrieved for query i is
relevant, nearest first. `relevant` is int [n]: the number of questions relevant to query i,
retrieved or not. Results are float64 [n]; a query without relevant questions scores 0.
"""

from __future__ import annotations

import numpy as np


def hits(relevance: np.ndarray, k: int) -> np.ndarray:
    """Return 1 if a relevant question is among the first `k` (H@k, section 4.3 of the paper)."""
    return np.where(relevance[:, :k].any(axis=1), 1.0, 0.0)


def recall(relevance: np.ndarray, relevant: np.ndarray, k: int) -> np.ndarray:
    """Return the share of all relevant questions that are among the first `k`."""
    return relevance[:, :k].sum(axis=1) / np.maximum(relevant, 1)


def precision(relevance: np.ndarray, k: int) -> np.ndarray:
    """Return the share of the first `k` places that hold a relevant question."""
    return relevance[:, :k].sum(axis=1) / k


def average_precision(relevance: np.ndarray, relevant: np.ndarray, k: int) -> np.ndarray:
    """Sum the precisions at the relevant questions of the first `k`, over the number of relevant.

    Like `map_cut` of trec_eval: the divisor counts all relevant questions, not at most `k`.
    """
    first = relevance[:, :k]
    precision = np.cumsum(first, axis=1) / np.arange(1, first.shape[1] + 1)
    return (precision * first).sum(axis=1) / np.maximum(relevant, 1)


def ndcg(relevance: np.ndarray, relevant: np.ndarray, k: int) -> np.ndarray:
    """Sum 1 / log2(1 + rank) over the first `k`, divided by the sum of the best ranking."""
    ideal = np.arange(k) < relevant[:, None]
    return graded_ndcg(relevance, ideal, k)


def graded_ndcg(grades: np.ndarray, ideal: np.ndarray, k: int) -> np.ndarray:
    """Compute `ndcg` with the grades as gains: `ndcg_cut` of trec_eval.

    (Others take 2^grade - 1 as gain, after Burges et al., 2005.)

    Args:
      grades: int [n, K], of the retrieved documents, nearest first; 0 where not judged. A grade
        below 0 counts 0.
      ideal: int [n, K], all grades of the query, highest first, then 0.
    """
    discounts = 1 / np.log2(np.arange(2, k + 2))

    def gain(ranked: np.ndarray) -> np.ndarray:
        first = np.maximum(ranked[:, :k], 0)
        return np.asarray(first @ discounts[: first.shape[1]])

    best = gain(ideal)
    return gain(grades) / np.where(best > 0, best, 1)


def reciprocal_rank(relevance: np.ndarray, k: int) -> np.ndarray:
    """Return 1 / rank of the first relevant question among the first `k`, or 0; mean: MRR."""
    first = relevance[:, :k]
    return np.where(first.any(axis=1), 1 / (1.0 + first.argmax(axis=1)), 0.0)
