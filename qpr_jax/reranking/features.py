"""The features of the words model of pairs: numbers of two texts.

Some words say more or less than their idf about the meaning of a text that has them, where the
other one lacks them, and so does a pair of a word of each text ("buy" and "purchase", "can" and
"cannot"). Each has a weight, learned from pairs of training questions; words and pairs whose hashes
collide share one.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.machine import cpu_count
from qpr_jax.reranking.feature_loops import (
    BITS,
    MOST,
    write_grams,
    write_order,
    write_words,
)
from qpr_jax.reranking.terms import (
    MAX_WORDS,
    Frequencies,
    make_lexicon,
    number_words,
    read_terms,
    table_size,
)

# `_query` is about the words of the query, `_question` about those of the hit.
_SIDES = (
    "overlap",  # share of the words that the other text has, too, weighted by idf
    "unmatched",  # the greatest idf of a word that the other text lacks
    "match",  # similarity of each word to the nearest of the other, mean weighted by idf
    "miss",  # the greatest idf * (1 - match) of a word
    "far",  # the greatest idf of a word with a match below 0.5
    "missing",  # the sum of idf * (1 - match)
    "numbers",  # words with a digit that the other text lacks, or turned numbers
    "far_words",  # words with a match below 0.5
    "idf",  # the sum
    "length",  # in words
)
FEATURES = (
    "distance",  # 0: a model of pairs has it beside these
    "bm25",
    "cosine_words",  # TF-IDF cosines; the dot product takes the smaller count
    "cosine_pairs",
    "cosine_threes",
    "cosine_fours",
    "negations",  # difference of their numbers
    "question_words",  # those that only one text has
    "first_word",  # whether it is the same
    "last_word",
    "common_run",  # the longest common run of words, as a share of the longer text
    "common_order",  # the longest common subsequence of words, likewise
    "word_weights",  # the sum of the learned weights of the words in which the texts differ
    *(f"{name}_{side}" for side in ("query", "question") for name in _SIDES),
)
# Columns for `symmetric`: those that read both texts alike, and those of each side.
_WHOLE = [
    place
    for place, name in enumerate(FEATURES[: FEATURES.index(f"{_SIDES[0]}_query")])
    if name not in ("distance", "bm25")
]
_QUERY, _QUESTION = (
    [FEATURES.index(f"{name}_{side}") for name in _SIDES] for side in ("query", "question")
)
_CHUNK = 2000  # hits that a thread takes at a time, or one list


def zero_weights() -> np.ndarray:
    """Make weights of words that are 0, float32 [2 ** BITS]."""
    return np.zeros(1 << BITS, np.float32)


def symmetric(features: np.ndarray) -> np.ndarray:
    """Derive features of the two texts alone, which stay if they swap: float32 [m, s].

    features: float32 [m, f], of a query and its hits. Those of each side become their sum and the
    size of their difference. The distance, and what compares hits, is left out.
    """
    query, question = features[:, _QUERY], features[:, _QUESTION]
    return np.hstack([features[:, _WHOLE], query + question, abs(query - question)])


class TextLists(NamedTuple):
    """The texts of q queries and of their m hits; the hits of a query are contiguous."""

    queries: Sequence[str]
    questions: Sequence[str]
    starts: np.ndarray  # int64 [q + 1], the hits of query i are starts[i] to starts[i + 1]


class FeatureExtractor:
    """Computes FEATURES of queries and their hits. Thread-safe."""

    def __init__(self, encoder: Encoder, frequencies: Frequencies, weights: np.ndarray) -> None:
        """Make the lexicon of the encoder's words.

        weights: float32 [2 ** BITS], the learned weights of words.
        """
        self.weights = weights
        self._frequencies = frequencies.codes, frequencies.idfs()
        self._mean_length = np.float32(frequencies.mean_length)
        self._lexicon = make_lexicon(*encoder.word_embeddings())

    def compute(self, lists: TextLists, rows: np.ndarray | None = None) -> np.ndarray:
        """Compute the features of hits, float32 [m, len(FEATURES)].

        No feature depends on other hits.

        rows: int32 [m, MOST] or None; gets the rows of the weights of each hit, -1 for none.
        """
        out = np.zeros((len(lists.questions), len(FEATURES)), np.float32)
        if rows is None:
            rows = np.empty((len(out), MOST), np.int32)
        if len(out) <= _CHUNK:
            self._write(lists, rows, out)
            return out
        queries, questions, starts = lists

        def fill(start: int, stop: int) -> None:
            own = slice(int(starts[start]), int(starts[stop]))
            bounds = starts[start : stop + 1] - own.start
            part = TextLists(queries[start:stop], questions[own], bounds)
            self._write(part, rows[own], out[own])

        chunks = np.flatnonzero(np.diff(starts[:-1] // _CHUNK, prepend=-1)).tolist()
        # A pool for each call: threads that wait in a kept one would be missing after a fork.
        with concurrent.futures.ThreadPoolExecutor(cpu_count()) as pool:
            for _ in pool.map(fill, chunks, [*chunks[1:], len(queries)]):
                pass
        return out

    def _write(self, lists: TextLists, rows: np.ndarray, out: np.ndarray) -> None:
        """Write all features to `out`."""
        starts, terms = lists.starts, read_terms([*lists.queries, *lists.questions])
        words = number_words(terms, starts, self._frequencies, self._lexicon)
        known = self._lexicon, self._mean_length, self.weights
        total, largest = len(words.hashes), int(np.diff(words.bounds[:, ::2]).max(initial=0))
        memory = (
            np.zeros((3, total), np.int64),  # times in the query and in the hit, 1 + the last hit
            np.empty((2, total), np.float32),  # similarity to the nearest word of the other text
            np.empty((2, MAX_WORDS), np.int64),  # the distinct words of query and hit
            np.empty((largest, MAX_WORDS), np.float32),  # similarity to the words of the query
        )
        write_words(terms, starts, words, *known, memory, rows, out)
        grams = terms.bounds[: len(starts) - 1, 4] - terms.bounds[: len(starts) - 1, 1]
        size = table_size(int(grams.max(initial=0)))
        hashes, counts = np.empty(size, np.uint64), np.zeros((3, size), np.int64)
        norms = np.empty(4, np.float64)
        write_grams(terms, starts, self._frequencies, hashes, counts, norms, out)
        write_order(terms, starts, words, np.empty((2, MAX_WORDS + 1), np.int64), out)
