"""Search by words: BM25, to compare encoders with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from qpr_jax.errors import needs
from qpr_jax.text.tokenizer import tokenize

# (texts, k) -> the questions with the largest scores, int64 [n, k], -1 if fewer than k have one
# above 0, and the scores, float32 [n, k], 0 there.
TextSearch = Callable[[Sequence[str], int], tuple[np.ndarray, np.ndarray]]

_K1, _B = 0.9, 0.4


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
