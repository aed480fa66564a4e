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
_BLOCK = 64  # queries scored at once


def bm25_search(questions: Sequence[str]) -> TextSearch:
    """BM25 over `questions`; a question that shares no word with the query is never found."""
    with needs("BM25", ".[train]"):
        import bm25s
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it prints at the level DEBUG
    model = bm25s.BM25(k1=_K1, b=_B)
    model.index([tokenize(question) for question in questions], show_progress=False)

    def scores(texts: Sequence[str]) -> np.ndarray:
        found = np.zeros((len(texts), len(questions)), np.float32)
        for row, text in zip(found, texts, strict=True):
            # bm25s fails on a query without known words.
            if words := [word for word in tokenize(text) if word in model.vocab_dict]:
                row[:] = model.get_scores(words)
        return found

    return score_search(scores)


def score_search(scores: Callable[[Sequence[str]], np.ndarray]) -> TextSearch:
    """Search by dense scores of every question, float32 [texts, questions]."""

    def search(texts: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        rows, best = np.full((len(texts), k), -1, np.int64), np.zeros((len(texts), k), np.float32)
        for start in range(0, len(texts), _BLOCK):
            for i, found in enumerate(scores(texts[start : start + _BLOCK]), start):
                # The largest positive scores, largest first, of equal ones the first first.
                last = len(found) - min(k, len(found))
                near = np.flatnonzero((found >= np.partition(found, last)[last]) & (found > 0))
                top = near[np.argsort(-found[near], kind="stable")[:k]]
                rows[i, : len(top)], best[i, : len(top)] = top, found[top]
        return rows, best

    return search
