"""Lexical baselines for the evaluator: BM25 and TF-IDF over the words of `text.tokenizer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer

from qpr_jax.evaluation.retrieval import RankFn
from qpr_jax.extras import needs
from qpr_jax.text.tokenizer import tokenize

# (texts, k) -> the numbers of the questions with the largest scores, int64 [n, k], -1 where fewer
# than k have one above 0, and the scores, float32 [n, k], 0 there.
TextSearch = Callable[[Sequence[str], int], tuple[np.ndarray, np.ndarray]]

K1, B = 0.9, 0.4  # of BM25
_BLOCK = 64  # queries scored at once


def bm25_text_search(questions: Sequence[str], *, k1: float = K1, b: float = B) -> TextSearch:
    """BM25 of any texts over `questions`; it never finds one without a word of the text."""
    with needs("BM25", "qpr_jax[lexical]"):
        import bm25s
    model = bm25s.BM25(k1=k1, b=b)
    model.index([tokenize(question) for question in questions], show_progress=False)

    def search(texts: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        rows, best = np.full((len(texts), k), -1, np.int64), np.zeros((len(texts), k), np.float32)
        for i, text in enumerate(texts):
            # bm25s fails on a query without words.
            if words := [word for word in tokenize(text) if word in model.vocab_dict]:
                scores = model.get_scores(words)
                rows[i] = _top_k(scores, k)
                best[i] = np.where(rows[i] >= 0, scores[rows[i]], 0)
        return rows, best

    return search


def bm25_search(questions: Sequence[str], *, k1: float = K1, b: float = B) -> RankFn:
    """BM25 over `questions`; it never finds a question without a word of the query."""
    return _of_rows(questions, bm25_text_search(questions, k1=k1, b=b))


def tfidf_text_search(questions: Sequence[str]) -> TextSearch:
    """Cosine of TF-IDF vectors of any texts; it never finds a question without a word of one."""
    vectorizer = TfidfVectorizer(analyzer=tokenize, dtype=np.float32)
    known = vectorizer.fit_transform(questions)
    by_word = known.T.tocsr()

    def search(texts: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        if not len(texts):  # scikit-learn refuses none
            return np.zeros((0, k), np.int64), np.zeros((0, k), np.float32)
        vectors = vectorizer.transform(texts)
        rows = cosine_top_k(vectors, by_word, k)
        products = known[rows.ravel()].multiply(vectors[np.arange(rows.size) // k])
        cosines = np.asarray(products.sum(axis=1), np.float32).reshape(rows.shape)
        return rows, np.where(rows >= 0, cosines, 0)

    return search


def tfidf_search(questions: Sequence[str]) -> RankFn:
    """Cosine of TF-IDF vectors; it never finds a question without a word of the query."""
    return _of_rows(questions, tfidf_text_search(questions))


def _of_rows(questions: Sequence[str], search: TextSearch) -> RankFn:
    """Search with some of the questions as queries."""
    return lambda rows, k: search([questions[row] for row in rows], k)[0]


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
