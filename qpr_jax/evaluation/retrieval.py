"""How well a search finds the other questions of a query's cluster, and how fast it answers.

A `RankFn` takes query positions int [n] (positions in the indexed questions) and k, and returns
the positions of the k nearest questions, nearest first, int64 [n, k] with -1 where there are
fewer; the query itself may be among them. The index, exact search and the lexical baselines are
all searches, so one evaluator serves them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Protocol

import faiss
import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.evaluation import metrics
from qpr_jax.index.question_index import QuestionIndex

RankFn = Callable[[np.ndarray, int], np.ndarray]

HITS_AT = (1, 10)
CUTOFFS = (1, 3, 5, 10, 20)
DEPTH = 20  # The paper retrieves 20 questions a query (section 4.3).
_BLOCK = 1024


class Searcher(Protocol):
    """What `time_queries` times: a `Retriever`."""

    def search(self, queries: Sequence[str], k: int = 5) -> object: ...  # noqa: D102


def index_search(index: QuestionIndex, vectors: np.ndarray) -> RankFn:
    """Search `index` with `vectors` float32 [Q, d], the vectors of its questions."""
    return lambda positions, k: index.search(vectors[positions], k)[1]


def exact_search(vectors: np.ndarray) -> RankFn:
    """Search all of `vectors` float32 [Q, d] by squared Euclidean distance, nothing left out."""

    def search(positions: np.ndarray, k: int) -> np.ndarray:
        found = np.full((len(positions), k), -1, np.int64)
        reach = min(k, len(vectors))
        found[:, :reach] = faiss.knn(vectors[positions], vectors, reach)[1]
        return found

    return search


def rank(search: RankFn, query_positions: np.ndarray, k: int = DEPTH) -> np.ndarray:
    """The `k` nearest of each query, itself excluded: int64 [n, k], -1 where there are fewer."""
    query_positions = np.asarray(query_positions, np.int64)
    rankings = np.empty((len(query_positions), k), np.int64)
    for start in range(0, len(query_positions), _BLOCK):
        queries = query_positions[start : start + _BLOCK]
        found = search(queries, k + 1)
        itself = found == queries[:, None]
        others_first = np.argsort(itself, axis=1, kind="stable")[:, :k]
        rankings[start : start + _BLOCK] = np.take_along_axis(found, others_first, axis=1)
    return rankings


def retrieval_scores(
    rankings: np.ndarray, query_positions: np.ndarray, pairs: np.ndarray, clusters: np.ndarray
) -> dict[str, dict[str, float]]:
    """Scores over pairs and over distinct queries; relevant is the rest of the query's cluster.

    Args:
      rankings: int64 [n, 20 or more] from `rank`.
      query_positions: int [n], distinct, the query of each row.
      pairs: int [P, 2], (query, candidate); each query must be among `query_positions`.
      clusters: int [Q], cluster of each indexed question, -1 for none.

    Returns:
      `per_pair`, where each pair counts once (as the paper does), so a query counts as often as it
      heads a pair, and `per_query`, where each query that heads a pair counts once; both with
      `hits@K` (1, 10), `recall@K`, `precision@K`, `map@K`, `ndcg@K` (1, 3, 5, 10, 20) and `mrr@20`,
      all in [0, 1].
    """
    if rankings.shape[1] < DEPTH:
        raise UserError(f"`rankings`: expected {DEPTH} places or more, got {rankings.shape[1]}")
    if len(pairs) == 0:
        raise UserError("`pairs`: expected one or more to score, got none; hold out more pairs")
    rows = _rows_of(pairs[:, 0], query_positions)
    scores = _scores(rankings, query_positions, clusters)
    once = np.unique(rows)
    return {
        "per_pair": {name: float(values[rows].mean()) for name, values in scores.items()},
        "per_query": {name: float(values[once].mean()) for name, values in scores.items()},
    }


def first_ranks(
    rankings: np.ndarray, query_positions: np.ndarray, clusters: np.ndarray
) -> np.ndarray:
    """Place of the first relevant question of each query, int64 [n], from 1; 0: not found.

    Hits@K and MRR follow from it alone; arguments as of `retrieval_scores`.
    """
    relevance = _relevance(rankings, query_positions, clusters)
    return np.where(relevance.any(axis=1), relevance.argmax(axis=1) + 1, 0)


def relevance_scores(
    search: Callable[[Sequence[str], int], Sequence[Sequence[Any]]],
    wanted: Mapping[str, Set[int]],
    *,
    other_texts: bool = False,
) -> dict[str, float]:
    """Scores over queries, each with the ids of the questions that mean the same.

    search: as of a `Retriever`. other_texts: pass over hits that have the text of the query.
    """
    queries = list(wanted)
    relevance = np.zeros((len(queries), DEPTH), bool)
    for start in range(0, len(queries), _BLOCK):
        block = queries[start : start + _BLOCK]
        for row, (query, hits) in enumerate(zip(block, search(block, 2 * DEPTH), strict=True)):
            seen = [hit.id for hit in hits if not other_texts or hit.question != query][:DEPTH]
            relevance[start + row, : len(seen)] = [i in wanted[query] for i in seen]
    relevant = np.array([len(wanted[query]) for query in queries])
    return {
        "queries": len(queries),
        **{f"hits@{k}": float(metrics.hits(relevance, k).mean()) for k in HITS_AT},
        f"mrr@{DEPTH}": float(metrics.reciprocal_rank(relevance, DEPTH).mean()),
        "recall@10": float(metrics.recall(relevance, relevant, 10).mean()),
    }


def index_recall(rankings: np.ndarray, exact_rankings: np.ndarray, k: int = 10) -> float:
    """Share of the exact first `k` that the index returns among its `k`, averaged over queries."""
    found, wanted = rankings[:, :k], exact_rankings[:, :k]
    known = wanted >= 0
    kept = (wanted[:, :, None] == found[:, None, :]).any(axis=2) & known
    return float(np.mean(kept.sum(axis=1) / np.maximum(known.sum(axis=1), 1)))


def roc_auc(positive_distances: np.ndarray, negative_distances: np.ndarray) -> float:
    """Area under the ROC curve of minus the distance: how often a positive pair is the nearer."""
    # Slow to import, and only training asks for it.
    from sklearn.metrics import roc_auc_score

    if len(positive_distances) == 0 or len(negative_distances) == 0:
        raise UserError("ROC AUC: expected pairs of both kinds, got none of one; hold out more")
    labels = np.repeat([1, 0], [len(positive_distances), len(negative_distances)])
    distances = np.concatenate([positive_distances, negative_distances])
    return float(roc_auc_score(labels, -distances))


def time_queries(
    retriever: Searcher, questions: Sequence[str], *, k: int = DEPTH
) -> dict[str, float]:
    """Milliseconds from the text of one query to its `k` hits, median and 99th percentile."""
    if not questions:
        raise UserError("`questions`: expected one or more to time, got none")
    for question in questions[:10]:  # The first calls pay for start-up.
        retriever.search([question], k)
    times = []
    for question in questions:
        start = time.perf_counter()
        retriever.search([question], k)
        times.append(1e3 * (time.perf_counter() - start))
    median, slow = np.percentile(times, [50, 99])
    return {"query_ms_p50": float(median), "query_ms_p99": float(slow)}


def _rows_of(queries: np.ndarray, query_positions: np.ndarray) -> np.ndarray:
    order = np.argsort(query_positions, kind="stable")
    at = np.searchsorted(query_positions, queries, sorter=order)
    rows = order[np.minimum(at, len(order) - 1)]
    missing = query_positions[rows] != queries
    if missing.any():
        raise UserError(f"`query_positions`: query {queries[missing][0]} of `pairs` is not ranked")
    return rows


def _relevance(
    rankings: np.ndarray, query_positions: np.ndarray, clusters: np.ndarray
) -> np.ndarray:
    own = clusters[query_positions]
    return (rankings >= 0) & (own >= 0)[:, None] & (clusters[rankings] == own[:, None])


def _scores(
    rankings: np.ndarray, query_positions: np.ndarray, clusters: np.ndarray
) -> dict[str, np.ndarray]:
    own = clusters[query_positions]
    clustered = clusters[clusters >= 0]
    sizes = np.bincount(clustered, minlength=1)
    relevant = np.where(own >= 0, sizes[np.maximum(own, 0)] - 1, 0)
    relevance = _relevance(rankings, query_positions, clusters)
    scores = {f"hits@{k}": metrics.hits(relevance, k) for k in HITS_AT}
    scores |= {f"recall@{k}": metrics.recall(relevance, relevant, k) for k in CUTOFFS}
    scores |= {f"precision@{k}": metrics.precision(relevance, k) for k in CUTOFFS}
    scores |= {f"map@{k}": metrics.average_precision(relevance, relevant, k) for k in CUTOFFS}
    scores |= {f"ndcg@{k}": metrics.ndcg(relevance, relevant, k) for k in CUTOFFS}
    return scores | {f"mrr@{DEPTH}": metrics.reciprocal_rank(relevance, DEPTH)}
