"""Scores of ranked lists, one a query; plain functions of what is relevant where.

Everywhere `relevance` is bool [n, K], row i telling which of the K questions retrieved for query
i are relevant, nearest first, and `relevant` is int [n], how many relevant questions there are for
query i, retrieved or not. Results are float64 [n]; a query with nothing relevant scores 0.
"""

from __future__ import annotations

import numpy as np


def hits(relevance: np.ndarray, k: int) -> np.ndarray:
    """1 where a relevant question is among the first `k` (the paper's H@k, section 4.3)."""
    return np.where(relevance[:, :k].any(axis=1), 1.0, 0.0)


def recall(relevance: np.ndarray, relevant: np.ndarray, k: int) -> np.ndarray:
    """Share of all relevant questions that are among the first `k`."""
    return relevance[:, :k].sum(axis=1) / np.maximum(relevant, 1)


def precision(relevance: np.ndarray, k: int) -> np.ndarray:
    """Share of the first `k` places that hold a relevant question."""
    return relevance[:, :k].sum(axis=1) / k


def average_precision(relevance: np.ndarray, relevant: np.ndarray, k: int) -> np.ndarray:
    """Precision at each relevant question of the first `k`, summed, over all that are relevant.

    As `map_cut` of trec_eval: the divisor is not cut to `k`.
    """
    first = relevance[:, :k]
    precision = np.cumsum(first, axis=1) / np.arange(1, first.shape[1] + 1)
    return (precision * first).sum(axis=1) / np.maximum(relevant, 1)


def ndcg(relevance: np.ndarray, relevant: np.ndarray, k: int) -> np.ndarray:
    """Discounted gain 1 / log2(1 + rank) of the first `k`, over that of the best list of `k`."""
    gains = 1 / np.log2(np.arange(2, k + 2))
    first = relevance[:, :k]
    best = np.concatenate([[0.0], np.cumsum(gains)])[np.minimum(relevant, k)]
    return (first @ gains[: first.shape[1]]) / np.where(best > 0, best, 1)


def graded_ndcg(grades: np.ndarray, ideal: np.ndarray, k: int) -> np.ndarray:
    """As `ndcg`, with gains that are the grades themselves: `ndcg_cut` of trec_eval.

    (Others take 2^grade - 1, after Burges et al., 2005.) grades: int [n, K], of what was retrieved,
    nearest first; what is not judged, and a grade below 0, counts 0. ideal: int [n, K], all grades
    there are for the query, highest first, 0 where there are fewer.
    """
    discounts = 1 / np.log2(np.arange(2, k + 2))

    def gain(lists: np.ndarray) -> np.ndarray:
        first = np.maximum(lists[:, :k], 0)
        return np.asarray(first @ discounts[: first.shape[1]])

    best = gain(ideal)
    return gain(grades) / np.where(best > 0, best, 1)


def reciprocal_rank(relevance: np.ndarray, k: int) -> np.ndarray:
    """1 / rank of the first relevant question among the first `k`, else 0 (its mean is MRR)."""
    first = relevance[:, :k]
    return np.where(first.any(axis=1), 1 / (1.0 + first.argmax(axis=1)), 0.0)
