"""Lexical baselines for the evaluator: BM25 and TF-IDF over the words of `text.tokenizer`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer

from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import RankFn
from qpr_jax.reranking.lexical import K1, B
from qpr_jax.text.tokenizer import tokenize

_BLOCK = 64  # queries scored at once


def bm25_search(questions: Sequence[str], *, k1: float = K1, b: float = B) -> RankFn:
    """BM25 over `questions`; it never finds a question without a word of the query."""
    try:
        import bm25s
    except ImportError as error:
        raise UserError(
            f"BM25 needs the package bm25s ({error})", remedy="pip install 'qpr_jax[lexical]'"
        ) from error
    tokens = [tokenize(question) for question in questions]
    model = bm25s.BM25(k1=k1, b=b)
    model.index(tokens, show_progress=False)

    def search(rows: np.ndarray, k: int) -> np.ndarray:
        found = np.full((len(rows), k), -1, np.int64)
        for i, row in enumerate(rows):
            if tokens[row]:  # bm25s fails on a query without words
                found[i] = _top_k(model.get_scores(tokens[row]), k)
        return found

    return search


def tfidf_search(questions: Sequence[str]) -> RankFn:
    """Cosine of TF-IDF vectors; it never finds a question without a word of the query."""
    vectorizer = TfidfVectorizer(analyzer=tokenize, dtype=np.float32)
    vectors = vectorizer.fit_transform(questions)
    by_word = vectors.T.tocsr()
    return lambda rows, k: cosine_top_k(vectors[rows], by_word, k)


def cosine_top_k(queries: csr_matrix, by_feature: csr_matrix, k: int) -> np.ndarray:
    """The numbers of the `k` vectors with the largest cosines: int64 [n, k].

    Of equal cosines the first comes first; -1 where no other vector has a positive one.

    Args:
      queries: [n, f], vectors of length 1.
      by_feature: [f, m], the vectors that are searched, one or more, of length 1, transposed.
      k: 1 or more.
    """
    found = np.full((queries.shape[0], k), -1, np.int64)
    for start in range(0, queries.shape[0], _BLOCK):
        scores = (queries[start : start + _BLOCK] @ by_feature).toarray()
        found[start : start + _BLOCK] = [_top_k(row, k) for row in scores]
    return found


def _top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Rows of the `k` largest positive scores, largest first, of equal ones the first row first."""
    best = np.full(k, -1, np.int64)
    last = len(scores) - min(k, len(scores))
    kth = np.partition(scores, last)[last]
    candidates = np.flatnonzero((scores >= kth) & (scores > 0))
    order = np.argsort(-scores[candidates], kind="stable")[:k]
    best[: len(order)] = candidates[order]
    return best
