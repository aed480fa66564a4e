"""The features of the light re-ranker: numbers of a query, a hit and the list of hits.

Compiled loops compute them from the terms of the texts. What is costly about a word - its weight,
its embedding, its similarity to the words of the query - is computed once for each distinct word of
a list of hits.
"""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Sequence

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.machine import compile_loop, cpu_count
from qpr_jax.reranking.frequencies import Frequencies, bucket
from qpr_jax.reranking.tables import (
    common_words,
    compare_word,
    find_word,
    make_words,
    read_grams,
    write_gaps,
)
from qpr_jax.reranking.word_weights import MOST, write_rows
from qpr_jax.reranking.words import (
    FOURS,
    MAX_BYTES,
    MAX_TERMS,
    MAX_WORDS,
    NEGATION,
    NUMBER,
    PAIRS,
    QUESTION_WORD,
    as_bytes,
    make_lexicon,
    read_terms,
)

# `_query` is about the words of the query, `_question` about those of the hit.
_SIDES = (
    "overlap",  # share of the words that the other text has, too, weighted by idf
    "unmatched",  # the greatest idf of a word that the other text lacks
    "match",  # similarity of each word to the nearest of the other, mean weighted by idf
    "miss",  # the greatest idf * (1 - match) of a word
    "far",  # the greatest idf of a word with a match below 0.5
    "missing",  # the sum of idf * (1 - match)
    "numbers",  # words with a digit that the other text lacks
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
_BM25, _COSINES, _NEGATIONS, _ORDER, _WEIGHTS = 1, 2, 6, 8, 12
_QUERY = FEATURES.index("overlap_query")
_QUESTION = _QUERY + len(_SIDES)
_GAPS = _QUESTION + len(_SIDES)
# Of each of _COMPARED: the first and the last feature, which may be one, and the sign.
_COLUMNS = np.array(
    [(FEATURES.index(own[1]), FEATURES.index(own[-1]), own[0]) for own in _COMPARED.values()]
)
_K1, _B = 1.2, 0.75  # of BM25
_NEAR = np.float32(0.5)  # the least match of a word that is not far
_ZERO = np.uint64(0)
_CHUNK = 32  # queries that a thread takes at a time


class FeatureExtractor:
    """Computes FEATURES of queries and their hits. Thread-safe."""

    def __init__(self, encoder: Encoder, frequencies: Frequencies, weights: np.ndarray) -> None:
        """Make the lexicon of the encoder's words.

        weights: float32 [2 ** word_weights.BITS], the learned weights.
        """
        self.weights, idfs = weights, frequencies.idfs()
        self._frequencies = (frequencies.codes, idfs, np.float32(frequencies.mean_length))
        self._lexicon = tuple(make_lexicon(*encoder.word_embeddings()))

    def compute(
        self,
        queries: Sequence[str],
        questions: Sequence[str],
        distances: np.ndarray,
        starts: np.ndarray,
        rows: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute the features of the hits of q queries.

        No feature depends on the order of the hits of a query, or compares the texts of two hits;
        gaps and ranks compare the values of one feature.

        Args:
          queries: q texts.
          questions: the m texts of the hits; those of a query are contiguous.
          distances: float32 [m], squared Euclidean.
          starts: int64 [q + 1]; the hits of query i are starts[i] to starts[i + 1].
          rows: int32 [m, MOST] or None; gets the rows of the weights of each hit, -1 for none.

        Returns:
          float32 [m, len(FEATURES)].
        """
        out = np.empty((len(questions), len(FEATURES)), np.float32)
        out[:, 0] = distances

        def fill(start: int) -> None:
            stop = min(start + _CHUNK, len(queries))
            first, last = int(starts[start]), int(starts[stop])
            texts = (as_bytes(queries[start:stop]), as_bytes(questions[first:last]))
            own = starts[start : stop + 1] - first
            places = np.empty((last - first, MOST), np.int32) if rows is None else rows[first:last]
            known = (self._frequencies, self._lexicon, self.weights)
            _compute(*texts, own, known, places, out[first:last])

        if len(queries) <= _CHUNK:
            fill(0)
            return out
        # A pool for each call: threads that wait in a kept one would be missing after a fork.
        with concurrent.futures.ThreadPoolExecutor(cpu_count()) as pool:
            for _ in pool.map(fill, range(0, len(queries), _CHUNK)):
                pass
        return out


@compile_loop()
def _compute(queries, questions, starts, known, rows, out):  # type: ignore[no-untyped-def]
    """Write the features of the texts, then gaps and ranks within each list, to `out`.

    Args:
      queries, questions: (bytes, offsets) of `as_bytes`.
      starts: int64 [q + 1], of the hits of each query.
      known: (`Frequencies.codes`, `.idfs()`, `.mean_length`), the fields of a `Lexicon`, and the
        learned weights.
      rows: int32 [m, MOST], gets the rows of the weights.
      out: float32 [m, features], has the distances already.
    """
    buffers = np.empty(MAX_BYTES + 2, np.uint8), np.empty(MAX_TERMS, np.uint64)
    values = np.empty(len(out), np.float32)
    for query in range(len(starts) - 1):
        first, stop = starts[query], starts[query + 1]
        if first < stop:
            _write_list(query, queries, first, stop, questions, known, buffers, rows, out)
            _write_comparisons(out[first:stop], values)


@compile_loop()
def _write_list(  # type: ignore[no-untyped-def]
    query, queries, first, stop, questions, tables, buffers, rows, out
):
    """Write the features of one list, except gaps and ranks; `tables` are `known` of `_compute`."""
    frequencies, lexicon, weights = tables
    (data, offsets), (text, terms) = queries, buffers
    ends = read_terms(data, offsets[query], offsets[query + 1], text, terms)
    size = ends[0]
    for row in range(first, stop):
        size += min(MAX_WORDS, (questions[1][row + 1] - questions[1][row]) // 2 + 1)
    words = make_words(size)
    query_ids, query_times = np.empty(MAX_WORDS, np.int64), np.zeros(MAX_WORDS, np.int64)
    distinct = np.int64(0)  # not 0: numba would compile what it is passed to for that number, too
    for w in range(ends[0]):
        at = find_word(terms[w], distinct, words, frequencies, lexicon)
        distinct = max(distinct, at + 1)
        query_ids[w], query_times[at] = at, query_times[at] + 1
    known, query_count = distinct, ends[0]
    similar = np.empty((len(words[0]), distinct), np.float32)
    for word in range(distinct):
        compare_word(word, distinct, words, lexicon, similar)
    grams, norms = read_grams(terms, ends, frequencies)
    own = np.arange(distinct)  # the distinct words of the query
    ids, others = np.empty(MAX_WORDS, np.int64), np.empty(MAX_WORDS, np.int64)
    run, best = np.empty((2, MAX_WORDS + 1), np.int64), np.empty(MAX_WORDS, np.float32)
    times, seen = np.zeros(len(words[0]), np.int64), np.full(len(words[0]), -1, np.int64)
    data, offsets = questions
    for row in range(first, stop):
        ends = read_terms(data, offsets[row], offsets[row + 1], text, terms)
        best[:distinct] = 0
        times[:distinct] = 0
        count = 0  # of the distinct words of the hit
        for w in range(ends[0]):
            at = find_word(terms[w], known, words, frequencies, lexicon)
            if at == known:
                compare_word(at, distinct, words, lexicon, similar)
                known += 1
            if seen[at] != row:
                seen[at], times[at], others[count] = row, 0, at
                count += 1
                for i in range(distinct):
                    best[i] = max(best[i], similar[at, i])
            times[at] += 1
            ids[w] = at
        line = out[row]
        _write_words(own, query_times, times, best, words, line, np.int64(_QUERY))
        _write_words(others[:count], times, query_times, words[2], words, line, np.int64(_QUESTION))
        line[_QUERY + len(_SIDES) - 1], line[_QUESTION + len(_SIDES) - 1] = query_count, ends[0]
        _write_common(own, query_times, others[:count], times, words, frequencies[2], ends[0], line)
        _write_grams(row, terms, ends, grams, norms, frequencies, line)
        _write_order(ids[: ends[0]], query_ids[:query_count], run, line)
        line[_WEIGHTS] = 0
        for i in range(write_rows(times[:distinct], others[:count], words[0], rows[row])):
            line[_WEIGHTS] += weights[rows[row, i]]


@compile_loop()
def _write_words(own, times, other_times, best, words, out, column):  # type: ignore[no-untyped-def]
    """Write the features of _SIDES, except lengths, of the distinct words `own` of one text.

    times: how often the text has each word; other_times: the other text. best: the similarity of
    each word to the nearest of the other text.
    """
    _, idfs, _, flags, _, _ = words
    total = shared = unmatched = miss = far = missing = np.float32(0)
    numbers = far_words = 0
    for word in own:
        idf, near = idfs[word], best[word]
        total += idf
        miss = max(miss, idf * (1 - near))
        missing += idf * (1 - near)
        if near < _NEAR:
            far, far_words = max(far, idf), far_words + 1
        if word < len(other_times) and other_times[word] > 0:
            shared += idf
        else:
            unmatched = max(unmatched, idf)
            numbers += flags[word] & NUMBER != 0
    out[column], out[column + 1] = _ratio(shared, total), unmatched
    out[column + 2], out[column + 3] = _ratio(total - missing, total), miss
    out[column + 4], out[column + 5], out[column + 6] = far, missing, numbers
    out[column + 7], out[column + 8] = far_words, total


@compile_loop()
def _write_common(  # type: ignore[no-untyped-def]
    own, times, others, other_times, words, mean_length, length, out
):
    """Write BM25, the cosine of words, negations and question words.

    own, times: the distinct words of the query, and how often it has each. others, other_times:
    those of the hit. length: the words of the hit.
    """
    _, idfs, _, flags, _, _ = words
    norm = other_norm = dot = bm25 = np.float32(0)
    negations = question_words = 0
    longer = np.float32(_K1 * (1 - _B + _B * length / mean_length))
    for word in own:
        square, here, there = idfs[word] ** 2, times[word], other_times[word]
        norm += here * square
        dot += min(here, there) * square
        bm25 += idfs[word] * np.float32(_K1 + 1) * there / (there + longer)
        negations += here * (flags[word] & NEGATION != 0)
        question_words += there == 0 and flags[word] & QUESTION_WORD != 0
    for word in others:
        other_norm += other_times[word] * idfs[word] ** 2
        negations -= other_times[word] * (flags[word] & NEGATION != 0)
        question_words += word >= len(own) and flags[word] & QUESTION_WORD != 0
    out[_BM25], out[_COSINES] = bm25, _ratio(dot, math.sqrt(norm * other_norm))
    out[_NEGATIONS], out[_NEGATIONS + 1] = abs(negations), question_words


@compile_loop()
def _write_grams(row, terms, ends, grams, norms, frequencies, out):  # type: ignore[no-untyped-def]
    """Write the cosines of word pairs and of character n-grams."""
    hashes, times, left, rows = grams
    codes, idfs, _ = frequencies
    mask = len(hashes) - 1
    for kind in range(PAIRS, FOURS + 1):
        dot = norm = np.float32(0)
        for term in range(ends[kind - 1], ends[kind]):
            h = terms[term]
            weight = idfs[codes[bucket(h, kind)]] ** 2
            norm += weight
            at = np.int64(h >> np.uint64(24)) & mask
            while hashes[at] != _ZERO and hashes[at] != h:
                at = (at + 1) & mask
            if hashes[at] == h:
                if rows[at] != row:
                    rows[at], left[at] = row, times[at]
                if left[at] > 0:
                    left[at] -= 1
                    dot += weight
        out[_COSINES + kind] = _ratio(dot, math.sqrt(norm * norms[kind]))


@compile_loop()
def _write_order(ids, others, run, out):  # type: ignore[no-untyped-def]
    """Write features of the order of words; run: working memory of `common_words`."""
    both = len(ids) > 0 and len(others) > 0
    out[_ORDER] = both and ids[0] == others[0]
    out[_ORDER + 1] = both and ids[-1] == others[-1]
    longest, order = common_words(ids, others, run)
    longer = max(len(ids), len(others), 1)
    out[_ORDER + 2], out[_ORDER + 3] = longest / longer, order / longer


@compile_loop()
def _ratio(part, whole):  # type: ignore[no-untyped-def]
    """Return part / whole, or 0 if whole is 0."""
    return np.float32(part / whole) if whole > 0 else np.float32(0)


@compile_loop()
def _write_comparisons(out, values):  # type: ignore[no-untyped-def]
    """Write gaps and ranks of a list, from its other columns; values: float32 [n or more]."""
    for which in range(len(_COLUMNS)):
        first, last, sign = _COLUMNS[which]
        for i in range(len(out)):
            value = out[i, first] + out[i, last] if last != first else out[i, first]
            values[i] = sign * value
        write_gaps(values, out, _GAPS + 3 * which)
