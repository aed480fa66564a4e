"""The features of the light re-ranker: numbers of a query, a hit and the list of hits.

Some words say more or less than their idf about the meaning of a text that has them, where the
other one lacks them, and so does a pair of a word of each text ("buy" and "purchase", "can" and
"cannot"). Each has a weight, learned from pairs of training questions; words and pairs whose hashes
collide share one.
"""

from __future__ import annotations

import concurrent.futures

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.machine import cpu_count
from qpr_jax.reranking.base import TextLists
from qpr_jax.reranking.feature_loops import (
    BITS,
    MOST,
    write_comparisons,
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
# What is compared within the list: 1, or -1 if less is better, and the features that are summed.
# `_gap` is the difference from the best value to this one, `_next` from this one to the next lower,
# `_rank` the number of better values.
_COMPARED = {
    "distance": (-1, "distance"),
    "bm25": (1, "bm25"),
    "fours": (1, "cosine_fours"),
    "threes": (1, "cosine_threes"),
    "match": (1, "match_query", "match_question"),
    "missing": (-1, "missing_query", "missing_question"),
    "miss": (-1, "miss_query", "miss_question"),
    "word_weights": (1, "word_weights"),
}
FEATURES = (
    "distance",
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
    *(f"{name}_{part}" for name in _COMPARED for part in ("gap", "rank", "next")),
)
WORD_WEIGHTS = tuple(name for name in FEATURES if name.startswith("word_weights"))
_COLUMNS = np.array(
    [(FEATURES.index(own[1]), FEATURES.index(own[-1]), own[0]) for own in _COMPARED.values()]
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

        No feature depends on the order of the hits of a query, or compares the texts of two hits;
        gaps and ranks compare the values of one feature.

        Args:
          lists: distances are squared Euclidean.
          rows: int32 [m, MOST] or None; gets the rows of the weights of each hit, -1 for none.
        """
        out = np.empty((len(lists.questions), len(FEATURES)), np.float32)
        out[:, 0] = lists.distances
        if rows is None:
            rows = np.empty((len(out), MOST), np.int32)
        if len(out) <= _CHUNK:
            self._write(lists, rows, out)
            return out
        queries, questions, distances, starts = lists

        def fill(start: int, stop: int) -> None:
            own = slice(int(starts[start]), int(starts[stop]))
            bounds = starts[start : stop + 1] - own.start
            part = TextLists(queries[start:stop], questions[own], distances[own], bounds)
            self._write(part, rows[own], out[own])

        chunks = np.flatnonzero(np.diff(starts[:-1] // _CHUNK, prepend=-1)).tolist()
        # A pool for each call: threads that wait in a kept one would be missing after a fork.
        with concurrent.futures.ThreadPoolExecutor(cpu_count()) as pool:
            for _ in pool.map(fill, chunks, [*chunks[1:], len(queries)]):
                pass
        return out

    def _write(self, lists: TextLists, rows: np.ndarray, out: np.ndarray) -> None:
        """Write all features but the distances to `out`."""
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
        norms = np.empty(4, np.float32)
        write_grams(terms, starts, self._frequencies, hashes, counts, norms, out)
        write_order(terms, starts, words, np.empty((2, MAX_WORDS + 1), np.int64), out)
        write_comparisons(starts, _COLUMNS, np.empty(len(out), np.float32), out)
