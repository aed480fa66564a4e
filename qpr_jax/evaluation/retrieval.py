"""Score how well a search finds what means the same: a cluster's questions, or a translation.

A `RankFn` takes the rows of queries int [n] in the indexed questions, and k. It returns the rows of
the k nearest questions, nearest first, int64 [n, k], -1 where there are fewer; the query itself may
be among them. BM25 is there to compare encoders with.

Of translations, row i of the source and of the target side translate each other. Candidates with
equal normalized texts are one answer, and so are the translations of one text. Of equal distances
the first row counts, so an encoder that gives all texts one vector finds one right answer in n.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.entries import numbered
from qpr_jax.data.parallel_sentences import Translations
from qpr_jax.errors import needs
from qpr_jax.evaluation.scores import hits, ranking_scores, reciprocal_rank
from qpr_jax.index.protocol import Hit
from qpr_jax.index.vectors import Vectors, exact_top_k, nearest
from qpr_jax.models import unit_rows
from qpr_jax.text.tokenizer import normalized_text, tokenize
from qpr_jax.text.vocabulary import Tokenizer

RankFn = Callable[[np.ndarray, int], np.ndarray]
SearchFn = Callable[[Sequence[str], int], Sequence[Sequence[Hit]]]  # (queries, k) -> hits

HITS_AT = (1, 10)
CUTOFFS = (1, 3, 5, 10, 20)
DEPTH = 20  # as many as the paper retrieves for a query (section 4.3)
_BLOCK = 1024  # queries searched at once
_NEAR = 8  # candidates among which equal distances are looked for
_SAMPLED = 20_000  # texts whose tokens are counted
_K1, _B = 0.9, 0.4  # of BM25

Encode = Callable[[Sequence[str]], np.ndarray]  # n texts -> float32 [n, d]
# (texts, k) -> the questions with the largest scores, int64 [n, k], -1 if fewer than k have one
# above 0, and the scores, float32 [n, k], 0 there.
TextSearch = Callable[[Sequence[str], int], tuple[np.ndarray, np.ndarray]]


def index_search(index: Vectors, vectors: np.ndarray) -> RankFn:
    """Return a search of an index; `vectors` float32 [Q, d] are those of its rows."""
    return lambda rows, k: index.search(vectors[rows], k)[1]


def exact_search(vectors: np.ndarray) -> RankFn:
    """Return a search that compares all of `vectors` float32 [Q, d] by squared distance."""
    return lambda rows, k: exact_top_k(vectors[rows], vectors, k)[1]


def rank(search: RankFn, query_rows: np.ndarray, k: int = DEPTH) -> np.ndarray:
    """Rank the `k` nearest of each query without itself: int64 [n, k], -1 if there are fewer."""
    query_rows = np.asarray(query_rows, np.int64)
    rankings = np.empty((len(query_rows), k), np.int64)
    for start in range(0, len(query_rows), _BLOCK):
        queries = query_rows[start : start + _BLOCK]
        found = search(queries, k + 1)
        itself = found == queries[:, None]
        others_first = np.argsort(itself, axis=1, kind="stable")[:, :k]
        rankings[start : start + _BLOCK] = np.take_along_axis(found, others_first, axis=1)
    return rankings


def retrieval_scores(
    rankings: np.ndarray, query_rows: np.ndarray, pairs: np.ndarray, clusters: np.ndarray
) -> dict[str, dict[str, float]]:
    """Score rankings; relevant are the other questions of a query's cluster.

    Args:
      rankings, query_rows: int64 [n, 20 or more], of `rank`, and int [n], their distinct queries.
      pairs: int [P, 2], (query, candidate); each query is among `query_rows`.
      clusters: int [Q], cluster of each indexed question, -1 for none.

    Returns:
      `per_pair` and `per_query`, both of `hits@K` (1, 10), `recall@K`, `precision@K`, `map@K`,
      `ndcg@K` (1, 3, 5, 10, 20) and `mrr@20`, all in [0, 1]. Over pairs, as in the paper, a query
      with three pairs counts three times. Queries are those that are the first of a pair.
    """
    order = np.argsort(query_rows)
    rows = order[np.searchsorted(query_rows, pairs[:, 0], sorter=order)]
    scores = _scores(rankings, query_rows, clusters)
    once = np.unique(rows)
    return {
        "per_pair": {name: float(values[rows].mean()) for name, values in scores.items()},
        "per_query": {name: float(values[once].mean()) for name, values in scores.items()},
    }


def first_ranks(rankings: np.ndarray, query_rows: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Return the rank of the first relevant question of each query, int64 [n], from 1; 0: none."""
    return first_right(_relevance(rankings, query_rows, clusters))


def first_right(relevance: np.ndarray) -> np.ndarray:
    """Return the rank of the first right hit of rankings bool [n, k]: int64 [n], 0 for none."""
    return np.where(relevance.any(axis=1), relevance.argmax(axis=1) + 1, 0)


def first_scores(relevance: np.ndarray) -> dict[str, float]:
    """Return the means of `hits@1`, `hits@10` and `mrr@20` of rankings, bool [n, k]."""
    scores = {f"hits@{k}": float(hits(relevance, k).mean()) for k in HITS_AT}
    return scores | {f"mrr@{DEPTH}": float(reciprocal_rank(relevance, DEPTH).mean())}


def overlap(rankings: np.ndarray, others: np.ndarray, k: int = 10) -> float:
    """Return the share of the first `k` of `others` that `rankings` have, too; the mean."""
    found, wanted = rankings[:, :k], others[:, :k]
    valid = wanted >= 0
    hit = (wanted[:, :, None] == found[:, None, :]).any(axis=2) & valid
    return float(np.mean(hit.sum(axis=1) / np.maximum(valid.sum(axis=1), 1)))


def roc_auc(positive_distances: np.ndarray, negative_distances: np.ndarray) -> float:
    """Return how often a random positive pair is closer than a random negative one."""
    # scikit-learn's is the same, but takes two seconds to import, in every training.
    ordered = np.sort(negative_distances)
    not_farther = np.searchsorted(ordered, positive_distances, "right")
    closer = np.searchsorted(ordered, positive_distances, "left")
    count = len(positive_distances) * len(negative_distances)
    # Of two negatives as far as a positive, one counts as farther.
    return 1 - float((closer + not_farther).sum()) / (2 * count)


def time_queries(search: SearchFn, questions: Sequence[str]) -> dict[str, float]:
    """Return median and 99th percentile of the milliseconds from a query's text to its hits."""
    for question in questions[:10]:  # the first calls are slower
        search([question], DEPTH)
    times = []
    for question in questions:
        start = time.perf_counter()
        search([question], DEPTH)
        times.append(1e3 * (time.perf_counter() - start))
    median, slow = np.percentile(times, [50, 99])
    return {"query_ms_p50": float(median), "query_ms_p99": float(slow)}


def _relevance(rankings: np.ndarray, query_rows: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    asked = clusters[query_rows][:, None]
    return (rankings >= 0) & (asked >= 0) & (clusters[rankings] == asked)


def _scores(
    rankings: np.ndarray, query_rows: np.ndarray, clusters: np.ndarray
) -> dict[str, np.ndarray]:
    asked = clusters[query_rows]
    sizes = np.bincount(clusters[clusters >= 0], minlength=1)
    relevant = np.where(asked >= 0, sizes[np.maximum(asked, 0)] - 1, 0)
    relevance = _relevance(rankings, query_rows, clusters)
    scores = {f"hits@{k}": hits(relevance, k) for k in HITS_AT}
    ideal = np.arange(DEPTH) < relevant[:, None]
    scores |= ranking_scores(relevance, ideal, relevant, CUTOFFS)
    return scores | {f"mrr@{DEPTH}": reciprocal_rank(relevance, DEPTH)}


class Corpus(NamedTuple):
    """Questions among which translations are searched, and their vectors, float32 [Q, d]."""

    questions: Sequence[str]
    vectors: np.ndarray


def score_set(
    texts: Translations,
    encode: Encode,
    *,
    teacher: Encode | None = None,
    corpus: Corpus | None = None,
) -> dict[str, Any]:
    """Score an encoder on one set of translations.

    Returns:
      `language`, `name` and `sentences`; `to_source` and `to_target`: how often the nearest vector
      of the other side, by Euclidean distance, is that of the translation. With a `teacher` also
      `cosine_source` and `cosine_target`: the mean cosine of each side to its vectors of the
      sources. With a `corpus` also `retrieval`: the scores of `score_retrieval` for the targets.
    """
    source, target = encode(texts.sources), encode(texts.targets)
    scores: dict[str, Any] = {
        "language": texts.language,
        "name": texts.name,
        "sentences": len(texts.sources),
    }
    groups = [numbered(map(normalized_text, side)) for side in (texts.sources, texts.targets)]
    for name, rows in (
        ("to_source", nearest_rows(target, source)),
        ("to_target", nearest_rows(source, target)),
    ):
        scores[name] = float(np.any([group[rows] == group for group in groups], axis=0).mean())
    if teacher:
        expected = unit_rows(np.asarray(teacher(texts.sources), np.float32))
        for name, side in (("cosine_source", source), ("cosine_target", target)):
            cosines = (unit_rows(np.asarray(side, np.float32)) * expected).sum(axis=1)
            scores[name] = float(cosines.mean())
    if corpus:
        scores["retrieval"] = score_retrieval(target, source, texts.sources, corpus)
    return scores


def score_retrieval(
    queries: np.ndarray, answers: np.ndarray, answer_texts: Sequence[str], corpus: Corpus
) -> dict[str, float]:
    """Score how well queries, float32 [n, d], find their translations behind a corpus.

    answers: float32 [n, d], of the translations `answer_texts`. All that reads like an answer is
    right. Returns `hits@1`, `hits@10` and `mrr@20`, in [0, 1].
    """
    size = len(corpus.questions)
    in_corpus = exact_top_k(queries, corpus.vectors, DEPTH)
    distances, rows = exact_top_k(queries, answers, DEPTH)
    in_answers = distances, np.where(rows >= 0, rows + size, -1)
    _, rankings = nearest(DEPTH, in_corpus, in_answers)
    numbers = numbered(map(normalized_text, [*corpus.questions, *answer_texts]))
    found = np.append(numbers, -1)[rankings]  # row -1 is the last
    return first_scores(found == numbers[size:, None])


def nearest_rows(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return the nearest candidate of each query, of equal distances the first row: int64 [n]."""
    # Equal vectors are searched once, as the first of them.
    _, first = np.unique(np.asarray(candidates, np.float32), axis=0, return_index=True)
    first.sort()
    distances, rows = exact_top_k(queries, candidates[first], min(_NEAR, len(first)))
    ties = np.where(distances == distances[:, :1], rows, len(first))
    return first[ties.min(axis=1)]


def known_shares(tokenizer: Tokenizer, files: Sequence[Translations]) -> dict[str, float]:
    """Return the share of known tokens of each language, in 20,000 texts of its translations.

    A known token has a row of its own. Dictionaries do not count.
    """
    texts: dict[str, dict[str, None]] = {}
    for file in files:
        if not file.dictionary:
            texts.setdefault(file.source_language, {}).update(dict.fromkeys(file.sources))
            texts.setdefault(file.language, {}).update(dict.fromkeys(file.targets))
    shares = {}
    for language, found in texts.items():
        sample = np.random.default_rng(0).permutation(np.array([*found], object))[:_SAMPLED]
        ids = tokenizer.token_ids(sample.tolist(), 1 << 30).ids
        shares[language] = float(tokenizer.is_known(ids).sum() / max(1, len(ids)))
    return shares


def bm25_search(questions: Sequence[str]) -> TextSearch:
    """BM25 over `questions`; a question that shares no word with the query is never found."""
    with needs("BM25", ".[train]"):
        import bm25s
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it prints at the level DEBUG
    model = bm25s.BM25(k1=_K1, b=_B)
    model.index([tokenize(question) for question in questions], show_progress=False)

    def scores(text: str) -> np.ndarray:
        # bm25s fails on a query without known words.
        words = [word for word in tokenize(text) if word in model.vocab_dict]
        return np.asarray(model.get_scores(words) if words else np.zeros(len(questions)))

    return score_search(scores)


def score_search(scores: Callable[[str], np.ndarray]) -> TextSearch:
    """Search by the scores of all questions, float [questions], for a text."""

    def search(texts: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        rows, best = np.full((len(texts), k), -1, np.int64), np.zeros((len(texts), k), np.float32)
        for i, found in enumerate(map(scores, texts)):
            # The largest positive scores, largest first, of equal ones the first first.
            last = len(found) - min(k, len(found))
            near = np.flatnonzero((found >= np.partition(found, last)[last]) & (found > 0))
            top = near[np.argsort(-found[near], kind="stable")[:k]]
            rows[i, : len(top)], best[i, : len(top)] = top, found[top]
        return rows, best

    return search
