"""The lexical baselines as searches for the evaluator: BM25 and TF-IDF, on our own words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import RankFn
from qpr_jax.text.tokenizer import tokenize

_BLOCK = 64


def bm25_search(questions: Sequence[str], *, k1: float = 0.9, b: float = 0.4) -> RankFn:
    """BM25 over `questions`; questions that share no word with the query are not found."""
    try:
        import bm25s
    except ImportError as error:
        raise UserError(
            f"BM25 needs the package bm25s ({error}); install it: pip install 'qpr_jax[lexical]'"
        ) from error
    tokens = [tokenize(question) for question in questions]
    model = bm25s.BM25(k1=k1, b=b)
    model.index(tokens, show_progress=False)

    def search(positions: np.ndarray, k: int) -> np.ndarray:
        found = np.full((len(positions), k), -1, np.int64)
        for row, position in enumerate(positions):
            if tokens[position]:  # bm25s fails on a query without words.
                found[row] = _best(model.get_scores(tokens[position]), k)
        return found

    return search


def tfidf_search(questions: Sequence[str]) -> RankFn:
    """Cosine of TF-IDF vectors; questions that share no word with the query are not found."""
    vectorizer = TfidfVectorizer(analyzer=tokenize, dtype=np.float32)
    vectors = vectorizer.fit_transform(questions)
    by_word = vectors.T.tocsr()

    def search(positions: np.ndarray, k: int) -> np.ndarray:
        found = np.full((len(positions), k), -1, np.int64)
        for start in range(0, len(positions), _BLOCK):
            block = (vectors[positions[start : start + _BLOCK]] @ by_word).toarray()
            for row, scores in enumerate(block, start=start):
                found[row] = _best(scores, k)
        return found

    return search


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the `k` best positive scores, best first, the earlier of equals first."""
    best = np.full(k, -1, np.int64)
    reach = min(k, len(scores))
    kth = np.partition(scores, len(scores) - reach)[len(scores) - reach]
    candidates = np.flatnonzero((scores >= kth) & (scores > 0))
    order = np.argsort(-scores[candidates], kind="stable")[:k]
    best[: len(order)] = candidates[order]
    return best
