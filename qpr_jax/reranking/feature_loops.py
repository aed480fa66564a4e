"""The compiled loops of the features of the light re-ranker.

The words of a list of hits are numbered: those of the query first, then those that only hits have.
What is costly about a word - its idf, its embedding, its similarity to the words of the query - is
found once for each number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qpr_jax.machine import compile_loop
from qpr_jax.reranking.terms import NEGATION, NUMBER, QUESTION_WORD

# Columns, which `features.FEATURES` names; SIDE columns for each of the two texts.
BM25, COSINES, NEGATIONS, ORDER, WEIGHTS, QUERY, SIDE = 1, 2, 6, 8, 12, 13, 10
QUESTION, GAPS = QUERY + SIDE, QUERY + 2 * SIDE
# The most words of each text that have weights: those that the other lacks, and those in pairs.
_UNMATCHED, _PAIRED = 6, 4
MOST = 2 * _UNMATCHED + _PAIRED**2  # weights of two texts
BITS = 18  # log2 of the number of weights
_SHIFT = np.uint64(64 - BITS)
_MIX = np.uint64(0x9FB21C651E98DF25)  # a product with it spreads the bits upwards
_K1, _B = 1.2, 0.75  # of BM25
_NEAR = np.float32(0.5)  # the least match of a word that is not far
_ZERO, _ONE, _LEAST = np.uint64(0), np.uint64(1), np.float32(-3e38)


class Words(NamedTuple):
    """The V words of q lists of hits, numbered list after list, and memory of `write_words`.

    Attributes:
      of_queries, of_questions: int64 [t], the number of each word in `Terms.hashes`.
      bounds: int64 [q, 3], the first word of a list, the first that its query lacks, and the end.
      hashes: uint64 [V]. idfs: float32 [V].
      flags: uint8 [V], NUMBER, NEGATION and QUESTION_WORD.
      rows: int32 [V], rows of embeddings in the lexicon, -1 for none.
      in_query, in_hit: int64 [V], how often the text has the word; 0 at first.
      seen: int64 [V], 1 + the last hit that had the word; 0 at first.
      near_query, near_hit: float32 [V], similarity to the nearest word of this text.
      every: int64 [V], 0, 1, ..., V - 1.
    """

    of_queries: np.ndarray
    of_questions: np.ndarray
    bounds: np.ndarray
    hashes: np.ndarray
    idfs: np.ndarray
    flags: np.ndarray
    rows: np.ndarray
    in_query: np.ndarray
    in_hit: np.ndarray
    seen: np.ndarray
    near_query: np.ndarray
    near_hit: np.ndarray
    every: np.ndarray


@compile_loop()
def number_words(  # type: ignore[no-untyped-def]
    queries, questions, starts, frequencies, lexicon, slots, words
):
    """Fill the first seven arrays of a `Words`.

    Args:
      queries, questions: `Terms`.
      starts: int64 [q + 1], of the hits of each query.
      frequencies: (`Frequencies.codes`, `.idfs()`).
      lexicon: a `Lexicon`.
      slots: int64, more than twice the words of the longest list, a power of 2: working memory.
      words: the `Words`.
    """
    known = np.int64(0)
    for query in range(len(starts) - 1):
        words.bounds[query, 0] = known
        for slot in range(len(slots)):
            slots[slot] = -1
        for at in range(queries.bounds[query, 0], queries.bounds[query, 1]):
            word = _find_word(queries, at, known, frequencies, lexicon, slots, words)
            known = max(known, word + 1)
            words.of_queries[at] = word
        words.bounds[query, 1] = known
        for row in range(starts[query], starts[query + 1]):
            for at in range(questions.bounds[row, 0], questions.bounds[row, 1]):
                word = _find_word(questions, at, known, frequencies, lexicon, slots, words)
                known = max(known, word + 1)
                words.of_questions[at] = word
        words.bounds[query, 2] = known


@compile_loop(inline="always")
def _find_word(terms, at, known, frequencies, lexicon, slots, words):  # type: ignore[no-untyped-def]
    """Return the number of a word; a new one gets the number `known`."""
    h, mask = terms.hashes[at], len(slots) - 1
    slot = np.int64(h >> np.uint64(20)) & mask
    while slots[slot] >= 0:
        if words.hashes[slots[slot]] == h:
            return slots[slot]
        slot = (slot + 1) & mask
    slots[slot] = known
    codes, idfs = frequencies
    words.hashes[known], words.idfs[known] = h, idfs[codes[terms.buckets[at]]]
    words.flags[known], words.rows[known] = np.uint8(h & _ONE) * NUMBER, -1
    place = lexicon.starts[np.int64(h >> np.uint64(48))]
    while lexicon.hashes[place] < h:
        place += 1
    if lexicon.hashes[place] == h:
        words.flags[known] |= lexicon.flags[place]
        words.rows[known] = lexicon.rows[place]
    return known


@compile_loop()
def write_words(  # type: ignore[no-untyped-def]
    queries, questions, starts, words, lexicon, mean_length, weights, similar, others, rows, out
):
    """Write the features of the words of queries and hits, in whatever order.

    Args:
      queries, questions, starts, words, lexicon: as of `number_words`.
      mean_length: float32, of a document.
      weights: float32 [2 ** BITS], the learned weights of words.
      similar: float32 [w, MAX_WORDS], w the words of the longest list: working memory.
      others: int64 [MAX_WORDS], working memory.
      rows: int32 [m, MOST], gets the rows of the weights of each hit, -1 for none.
      out: float32 [m, features].
    """
    in_query, in_hit, seen, near_query = words.in_query, words.in_hit, words.seen, words.near_query
    near_hit = words.near_hit
    for query in range(len(starts) - 1):
        first, end, stop = words.bounds[query, 0], words.bounds[query, 1], words.bounds[query, 2]
        length = queries.bounds[query, 1] - queries.bounds[query, 0]
        for at in range(queries.bounds[query, 0], queries.bounds[query, 1]):
            in_query[words.of_queries[at]] += 1
        for word in range(first, stop):
            near_query[word] = _compare(word, first, end, words, lexicon, similar)
        for row in range(starts[query], starts[query + 1]):
            for word in range(first, end):
                in_hit[word], near_hit[word] = 0, 0
            count = np.int64(0)  # of the distinct words of the hit
            for at in range(questions.bounds[row, 0], questions.bounds[row, 1]):
                word = words.of_questions[at]
                if seen[word] != row + 1:
                    seen[word], in_hit[word], others[count] = row + 1, 0, word
                    count += 1
                    for own in range(first, end):
                        near_hit[own] = max(near_hit[own], similar[word - first, own - first])
                in_hit[word] += 1
            line, zero = out[row], np.int64(0)
            line[QUERY + SIDE - 1] = length
            line[QUESTION + SIDE - 1] = questions.bounds[row, 1] - questions.bounds[row, 0]
            _write_side(words.every, first, end, in_hit, near_hit, words, line, np.int64(QUERY))
            _write_side(others, zero, count, in_query, near_query, words, line, np.int64(QUESTION))
            _write_common(first, end, others, count, words, mean_length, line)
            _write_weights(first, end, others, count, words, weights, rows[row], line)


@compile_loop(inline="always")
def _compare(word, first, end, words, lexicon, similar):  # type: ignore[no-untyped-def]
    """Write the similarities of a word to those of the query, and return the greatest."""
    row, greatest = words.rows[word], np.float32(0)
    for other in range(first, end):
        value, second = np.float32(0), words.rows[other]
        if word == other:
            value = np.float32(1)
        elif row >= 0 and second >= 0:
            total = np.int32(0)
            for i in range(lexicon.vectors.shape[1]):
                total += np.int32(lexicon.vectors[row, i]) * np.int32(lexicon.vectors[second, i])
            value = np.float32(total) * lexicon.scales[row] * lexicon.scales[second]
        similar[word - first, other - first] = value
        greatest = max(greatest, value)
    return greatest


@compile_loop()
def _write_side(own, first, end, other_times, near, words, out, column):  # type: ignore[no-untyped-def]
    """Write the features of the distinct words own[first:end] of one text, except its length.

    other_times: how often the other text has each word. near: the similarity of each word to the
    nearest one of the other text.
    """
    total = shared = unmatched = miss = far = missing = np.float32(0)
    numbers = far_words = 0
    for i in range(first, end):
        word = own[i]
        idf, match = words.idfs[word], near[word]
        total += idf
        miss = max(miss, idf * (1 - match))
        missing += idf * (1 - match)
        if match < _NEAR:
            far, far_words = max(far, idf), far_words + 1
        if other_times[word] > 0:
            shared += idf
        else:
            unmatched = max(unmatched, idf)
            numbers += words.flags[word] & NUMBER != 0
    out[column], out[column + 1] = _ratio(shared, total), unmatched
    out[column + 2], out[column + 3] = _ratio(total - missing, total), miss
    out[column + 4], out[column + 5], out[column + 6] = far, missing, numbers
    out[column + 7], out[column + 8] = far_words, total


@compile_loop(inline="always")
def _write_common(first, end, others, count, words, mean_length, out):  # type: ignore[no-untyped-def]
    """Write BM25, the cosine of words, negations and question words."""
    in_query, in_hit, flags = words.in_query, words.in_hit, words.flags
    norm = other_norm = dot = bm25 = np.float32(0)
    negations = question_words = 0
    longer = np.float32(_K1 * (1 - _B + _B * out[QUESTION + SIDE - 1] / mean_length))
    for word in range(first, end):
        square, here, there = words.idfs[word] ** 2, in_query[word], in_hit[word]
        norm += here * square
        dot += min(here, there) * square
        bm25 += words.idfs[word] * np.float32(_K1 + 1) * there / (there + longer)
        negations += here * (flags[word] & NEGATION != 0)
        question_words += there == 0 and flags[word] & QUESTION_WORD != 0
    for i in range(count):
        word = others[i]
        other_norm += in_hit[word] * words.idfs[word] ** 2
        negations -= in_hit[word] * (flags[word] & NEGATION != 0)
        question_words += in_query[word] == 0 and flags[word] & QUESTION_WORD != 0
    out[BM25], out[COSINES] = bm25, _ratio(dot, math.sqrt(norm * other_norm))
    out[NEGATIONS], out[NEGATIONS + 1] = abs(negations), question_words


@compile_loop(inline="always")
def _write_weights(first, end, others, found, words, weights, rows, out):  # type: ignore[no-untyped-def]
    """Write the rows of the weights of a hit, int32 [MOST], then -1; and the sum of the weights.

    They are of words that only one of the two texts has, then of pairs of such words.
    """
    own = count = 0
    for i in range(found):
        if words.in_query[others[i]] == 0 and own < _UNMATCHED:
            rows[own] = others[i]
            own += 1
    count = own
    for word in range(first, end):
        if words.in_hit[word] == 0 and count < own + _UNMATCHED:
            rows[count] = word
            count += 1
    size, paired = count, min(count, own + _PAIRED)
    for i in range(min(own, _PAIRED)):
        for j in range(own, paired):
            # The sum is the same for both orders.
            rows[count] = ((words.hashes[rows[i]] + words.hashes[rows[j]]) * _MIX) >> _SHIFT
            count += 1
    total = np.float32(0)
    for i in range(len(rows)):
        if i < size:
            rows[i] = words.hashes[rows[i]] >> _SHIFT
        if i < count:
            total += weights[rows[i]]
        else:
            rows[i] = -1
    out[WEIGHTS] = total


@compile_loop()
def write_grams(  # type: ignore[no-untyped-def]
    queries, questions, starts, frequencies, hashes, times, left, hits, out
):
    """Write the cosines of word pairs and of character n-grams.

    hashes, times, left, hits: uint64 and int64 [s], s more than the terms of a query, a power of 2:
    working memory for the terms of a query. They are the hash, how often the query has it, how many
    of these a hit has not used, and 1 + that hit, 0 at first.
    """
    codes, idfs = frequencies
    mask, norms = len(hashes) - 1, np.zeros(4, np.float32)
    for query in range(len(starts) - 1):
        for at in range(len(hashes)):
            hashes[at], times[at] = _ZERO, 0
        for kind in range(1, 4):
            norms[kind] = 0
            for term in range(queries.bounds[query, kind], queries.bounds[query, kind + 1]):
                at = _find_gram(queries.hashes[term], hashes, mask)
                hashes[at], times[at] = queries.hashes[term], times[at] + 1
                norms[kind] += idfs[codes[queries.buckets[term]]] ** 2
        for row in range(starts[query], starts[query + 1]):
            for kind in range(1, 4):
                dot = norm = np.float32(0)
                for term in range(questions.bounds[row, kind], questions.bounds[row, kind + 1]):
                    weight = idfs[codes[questions.buckets[term]]] ** 2
                    norm += weight
                    at = _find_gram(questions.hashes[term], hashes, mask)
                    if hashes[at] != _ZERO:
                        if hits[at] != row + 1:
                            hits[at], left[at] = row + 1, times[at]
                        if left[at] > 0:
                            left[at] -= 1
                            dot += weight
                out[row, COSINES + kind] = _ratio(dot, math.sqrt(norm * norms[kind]))


@compile_loop(inline="always")
def _find_gram(h, hashes, mask):  # type: ignore[no-untyped-def]
    """Return the place of a hash in a hash table, or an empty place, which has the hash 0."""
    at = np.int64(h >> np.uint64(24)) & mask
    while hashes[at] != _ZERO and hashes[at] != h:
        at = (at + 1) & mask
    return at


@compile_loop()
def write_order(queries, questions, starts, words, run, out):  # type: ignore[no-untyped-def]
    """Write the features of the order of words.

    They are whether the first word is the same, and the last one, and the lengths of the longest
    common run of words and of their longest common subsequence.

    run: int64 [2, MAX_WORDS + 1], working memory.
    """
    a, b = words.of_queries, words.of_questions
    for query in range(len(starts) - 1):
        begin, end = queries.bounds[query, 0], queries.bounds[query, 1]
        for row in range(starts[query], starts[query + 1]):
            first, stop = questions.bounds[row, 0], questions.bounds[row, 1]
            longest, longer = 0, max(end - begin, stop - first, 1)
            for j in range(stop - first + 1):
                run[0, j], run[1, j] = 0, 0
            for i in range(begin, end):
                run_before, order_before, left = 0, 0, 0
                for j in range(1, stop - first + 1):
                    run_above, above = run[0, j], run[1, j]
                    same = a[i] == b[first + j - 1]
                    length = run_before + 1 if same else 0
                    left = order_before + 1 if same else max(above, left)
                    run[0, j], run[1, j] = length, left
                    longest = max(longest, length)
                    run_before, order_before = run_above, above
            both = begin < end and first < stop
            out[row, ORDER] = both and a[begin] == b[first]
            out[row, ORDER + 1] = both and a[end - 1] == b[stop - 1]
            out[row, ORDER + 2] = longest / longer
            out[row, ORDER + 3] = run[1, stop - first] / longer


@compile_loop()
def _ratio(part, whole):  # type: ignore[no-untyped-def]
    """Return part / whole, or 0 if whole is 0."""
    return np.float32(part / whole) if whole > 0 else np.float32(0)


@compile_loop(fastmath={"nnan", "nsz", "reassoc"})
def write_comparisons(starts, columns, values, out):  # type: ignore[no-untyped-def]
    """Write gaps and ranks within each list, from its other columns.

    columns: int64 [c, 3], of each comparison the first and the last column that are summed, and 1,
    or -1 where less is better. values: float32, as long as the longest list: working memory.
    """
    for query in range(len(starts) - 1):
        start, n = starts[query], starts[query + 1] - starts[query]
        for which in range(len(columns)):
            first, last, sign = columns[which, 0], columns[which, 1], columns[which, 2]
            best = _LEAST
            for i in range(n):
                value = out[start + i, first]
                if last != first:
                    value += out[start + i, last]
                values[i] = sign * value
                best = max(best, values[i])
            for i in range(n):
                value, larger, equal, below = values[i], np.int32(0), np.int32(0), _LEAST
                for j in range(n):
                    larger = np.int32(larger + np.int32(values[j] > value))
                    equal = np.int32(equal + np.int32(values[j] == value))
                    below = max(below, values[j] if values[j] < value else _LEAST)
                line, column = out[start + i], GAPS + 3 * which
                line[column], line[column + 1] = best - value, larger
                # Of equal values, the next one is another of them.
                single = equal == 1 and below > _LEAST
                line[column + 2] = value - below if single else np.float32(0)
