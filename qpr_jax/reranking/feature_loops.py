"""The compiled loops of the features of the words model of pairs.

Their callers make all arrays: compiling an allocation takes a tenth of a second. Sums are of
float64, so that they are the same float32 if the two texts swap.
"""

from __future__ import annotations

import math

import numpy as np

from qpr_jax.machine import compile_loop
from qpr_jax.reranking.terms import NEGATION, NUMBER, QUESTION_WORD

# Columns, which `features.FEATURES` names; SIDE columns for each of the two texts.
BM25, COSINES, NEGATIONS, ORDER, WEIGHTS, QUERY, SIDE = 1, 2, 6, 8, 12, 13, 10
NUMBERS = QUERY + 6
QUESTION = QUERY + SIDE
# The most words of each text that have weights: those that the other lacks, and those in pairs.
_UNMATCHED, _PAIRED = 6, 4
MOST = 2 * _UNMATCHED + _PAIRED**2  # weights of two texts
BITS = 18  # log2 of the number of weights
_SHIFT = np.uint64(64 - BITS)
_MIX = np.uint64(0x9FB21C651E98DF25)  # a product with it spreads the bits upwards
_K1, _B = 1.2, 0.75  # of BM25
_NEAR = np.float32(0.5)  # the least match of a word that is not far
_ZERO, _ONE = np.uint64(0), np.uint64(1)


@compile_loop()
def write_words(  # type: ignore[no-untyped-def]
    terms, starts, words, lexicon, mean_length, weights, memory, rows, out
):
    """Write the features of the words of queries and hits, in whatever order.

    Args:
      terms, starts, words, lexicon: as of `number_words`.
      mean_length: float32, of a document.
      weights: float32 [2 ** BITS], the learned weights of words.
      memory: for words, as of `word_memory`.
      rows: int32 [m, MOST], gets the rows of the weights of each hit, -1 for none.
      out: float32 [m, features].
    """
    times, near, distinct, similar = memory
    in_query, in_hit, seen = times[0], times[1], times[2]
    near_query, near_hit, own, others = near[0], near[1], distinct[0], distinct[1]
    for query in range(len(starts) - 1):
        first, end, stop = words.bounds[query, 0], words.bounds[query, 1], words.bounds[query, 2]
        for at in range(terms.bounds[query, 0], terms.bounds[query, 1]):
            in_query[words.numbers[at]] += 1
        for word in range(first, stop):
            near_query[word] = _compare(word, first, end, words, lexicon, similar)
        for row in range(starts[query], starts[query + 1]):
            bounds, line = terms.bounds[len(starts) - 1 + row], out[row]
            for word in range(first, end):
                in_hit[word], near_hit[word], own[word - first] = 0, 0, word
            count = np.int64(0)  # of the distinct words of the hit
            for at in range(bounds[0], bounds[1]):
                word = words.numbers[at]
                if seen[word] != row + 1:
                    seen[word], in_hit[word], others[count] = row + 1, 0, word
                    count += 1
                    for i in range(first, end):
                        near_hit[i] = max(near_hit[i], similar[word - first, i - first])
                in_hit[word] += 1
            line[QUERY + SIDE - 1] = terms.bounds[query, 1] - terms.bounds[query, 0]
            line[QUESTION + SIDE - 1] = bounds[1] - bounds[0]
            size, idfs, flags = end - first, words.idfs, words.flags
            _write_side(own, size, in_hit, near_hit, idfs, flags, np.int64(QUERY), line)
            _write_side(others, count, in_query, near_query, idfs, flags, np.int64(QUESTION), line)
            _write_common(own, size, others, count, times, idfs, flags, mean_length, line)
            _write_weights(own, size, others, count, times, words.hashes, weights, rows[row], line)


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
            value = np.float32(total) * (lexicon.scales[row] * lexicon.scales[second])
        similar[word - first, other - first] = value
        greatest = max(greatest, value)
    return greatest


@compile_loop()
def _write_side(own, size, other_times, near, idfs, flags, column, out):  # type: ignore[no-untyped-def]
    """Write the features of the distinct words own[:size] of one text, except its length.

    other_times: how often the other text has each word. near: the similarity of each word to the
    nearest one of the other text.
    """
    total = shared = missing = np.float64(0)
    unmatched = miss = far = np.float32(0)
    numbers = far_words = 0
    for word in own[:size]:
        idf, match = idfs[word], near[word]
        total += idf
        miss = max(miss, idf * (1 - match))
        missing += idf * (1 - match)
        if match < _NEAR:
            far, far_words = max(far, idf), far_words + 1
        if other_times[word] > 0:
            shared += idf
        else:
            unmatched = max(unmatched, idf)
            numbers += flags[word] & NUMBER != 0
    out[column], out[column + 1] = _ratio(shared, total), unmatched
    out[column + 2], out[column + 3] = _ratio(total - missing, total), miss
    out[column + 4], out[column + 5], out[column + 6] = far, missing, numbers
    out[column + 7], out[column + 8] = far_words, total


@compile_loop()
def _write_common(own, size, others, count, times, idfs, flags, mean_length, out):  # type: ignore[no-untyped-def]
    """Write BM25, the cosine of words, negations and question words."""
    in_query, in_hit = times[0], times[1]
    norm = other_norm = dot = bm25 = np.float64(0)
    negations = question_words = 0
    longer = np.float32(_K1 * (1 - _B + _B * out[QUESTION + SIDE - 1] / mean_length))
    for word in own[:size]:
        square, here, there = idfs[word] * idfs[word], in_query[word], in_hit[word]
        norm += here * square
        dot += min(here, there) * square
        bm25 += idfs[word] * np.float32(_K1 + 1) * there / (there + longer)
        negations += here * (flags[word] & NEGATION != 0)
        question_words += there == 0 and flags[word] & QUESTION_WORD != 0
    for word in others[:count]:
        other_norm += in_hit[word] * (idfs[word] * idfs[word])
        negations -= in_hit[word] * (flags[word] & NEGATION != 0)
        question_words += in_query[word] == 0 and flags[word] & QUESTION_WORD != 0
    out[BM25], out[COSINES] = bm25, _ratio(dot, math.sqrt(norm * other_norm))
    out[NEGATIONS], out[NEGATIONS + 1] = abs(negations), question_words


@compile_loop()
def _write_weights(own, size, others, count, times, hashes, weights, rows, out):  # type: ignore[no-untyped-def]
    """Write the rows of the weights of a hit, int32 [MOST], then -1; and the sum of the weights.

    They are of words that only one of the two texts has, then of pairs of such words.
    """
    picked = 0
    for word in others[:count]:
        if times[0, word] == 0 and picked < _UNMATCHED:
            rows[picked] = word
            picked += 1
    first, single = picked, picked
    for word in own[:size]:
        if times[1, word] == 0 and single < first + _UNMATCHED:
            rows[single] = word
            single += 1
    end = single
    for i in range(min(first, _PAIRED)):
        for j in range(first, min(single, first + _PAIRED)):
            # The sum is the same for both orders.
            rows[end] = ((hashes[rows[i]] + hashes[rows[j]]) * _MIX) >> _SHIFT
            end += 1
    total = np.float64(0)
    for i in range(len(rows)):
        if i < single:
            rows[i] = hashes[rows[i]] >> _SHIFT
        if i < end:
            total += weights[rows[i]]
        else:
            rows[i] = -1
    out[WEIGHTS] = total


@compile_loop()
def write_grams(terms, starts, frequencies, hashes, counts, norms, out):  # type: ignore[no-untyped-def]
    """Write the cosines of word pairs and of character n-grams.

    hashes, counts: memory of a hash table of the n-grams of a query, uint64 [s] and int64 [3, s]:
      how often the query has each, how many of these a hit has not used, and 1 + this hit (0 here).
    norms: memory, float64 [4].
    """
    (codes, idfs), queries = frequencies, len(starts) - 1
    times, left, hits = counts[0], counts[1], counts[2]
    for query in range(queries):
        for at in range(len(hashes)):
            hashes[at], times[at] = _ZERO, 0
        for kind in range(1, 4):
            norms[kind] = 0
            for term in range(terms.bounds[query, kind], terms.bounds[query, kind + 1]):
                at = _find_gram(terms.hashes[term], hashes)
                hashes[at], times[at] = terms.hashes[term], times[at] + 1
                norms[kind] += idfs[codes[terms.buckets[term]]] ** 2
        for row in range(starts[query], starts[query + 1]):
            bounds = terms.bounds[queries + row]
            for kind in range(1, 4):
                dot = norm = np.float64(0)
                for term in range(bounds[kind], bounds[kind + 1]):
                    weight = idfs[codes[terms.buckets[term]]] ** 2
                    norm += weight
                    at = _find_gram(terms.hashes[term], hashes)
                    if hashes[at] != _ZERO:
                        if hits[at] != row + 1:
                            hits[at], left[at] = row + 1, times[at]
                        if left[at] > 0:
                            left[at] -= 1
                            dot += weight
                out[row, COSINES + kind] = _ratio(dot, math.sqrt(norm * norms[kind]))


@compile_loop(inline="always")
def _find_gram(h, hashes):  # type: ignore[no-untyped-def]
    """Return the place of a hash in a hash table, or an empty place, which has the hash 0."""
    mask = len(hashes) - 1
    at = np.int64(h >> np.uint64(24)) & mask
    while hashes[at] != _ZERO and hashes[at] != h:
        at = (at + 1) & mask
    return at


@compile_loop()
def write_order(terms, starts, words, run, out):  # type: ignore[no-untyped-def]
    """Write the features of the order of words.

    They are whether the first word is the same, and the last one, and the lengths of the longest
    common run of words and of their longest common subsequence. Numbers in another order are added
    to those that the other text lacks. `run` is working memory, int64 [2, MAX_WORDS + 1].
    """
    numbers, queries = words.numbers, len(starts) - 1
    for query in range(queries):
        begin, end = terms.bounds[query, 0], terms.bounds[query, 1]
        for row in range(starts[query], starts[query + 1]):
            first, stop = terms.bounds[queries + row, 0], terms.bounds[queries + row, 1]
            longest, longer = 0, max(end - begin, stop - first, 1)
            for j in range(stop - first + 1):
                run[0, j], run[1, j] = 0, 0
            for i in range(begin, end):
                run_before, order_before, left = 0, 0, 0
                for j in range(1, stop - first + 1):
                    run_above, above = run[0, j], run[1, j]
                    same = numbers[i] == numbers[first + j - 1]
                    length = run_before + 1 if same else 0
                    left = order_before + 1 if same else max(above, left)
                    run[0, j], run[1, j] = length, left
                    longest = max(longest, length)
                    run_before, order_before = run_above, above
            both = begin < end and first < stop
            out[row, ORDER] = both and numbers[begin] == numbers[first]
            out[row, ORDER + 1] = both and numbers[end - 1] == numbers[stop - 1]
            out[row, ORDER + 2] = longest / longer
            out[row, ORDER + 3] = run[1, stop - first] / longer
            other, this = (first, stop), (begin, end)
            out[row, NUMBERS] += _swapped_numbers(numbers, words.flags, this, other)
            out[row, NUMBERS + SIDE] += _swapped_numbers(numbers, words.flags, other, this)


@compile_loop()
def _swapped_numbers(numbers, flags, own, other):  # type: ignore[no-untyped-def]
    """Count pairs of numbers of a text that only the other text has the other way round.

    They follow each other, or have a word between them, the same in both texts, as in 03/04/2024
    and 04/03/2024. own, other: where the words of the texts begin and end.
    """
    swapped = 0
    for i in range(own[0] + 1, own[1]):
        for gap in range(1, min(2, i - own[0]) + 1):
            left, right = numbers[i - gap], numbers[i]
            if not flags[left] & flags[right] & NUMBER:
                continue
            same, turned = False, False
            for j in range(other[0] + gap, other[1]):
                first, last = numbers[j - gap], numbers[j]
                same |= first == left and last == right
                between = gap == 1 or numbers[j - 1] == numbers[i - 1]
                turned |= first == right and last == left and between
            swapped += turned and not same
    return swapped


@compile_loop()
def _ratio(part, whole):  # type: ignore[no-untyped-def]
    """Return part / whole, or 0 if whole is 0."""
    return np.float32(part / whole) if whole > 0 else np.float32(0)
