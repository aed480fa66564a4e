"""Parts of the features of a list of hits: tables of its words and n-grams, gaps and ranks."""

from __future__ import annotations

import numpy as np

from qpr_jax.machine import compile_loop
from qpr_jax.reranking.frequencies import bucket
from qpr_jax.reranking.words import FOURS, NUMBER, PAIRS, WORDS

_ZERO, _ONE, _LEAST = np.uint64(0), np.uint64(1), np.float32(-3e38)


@compile_loop()
def make_words(size):  # type: ignore[no-untyped-def]
    """Allocate the distinct words of a list, at most `size`.

    Returns:
      Of each word: hash, idf, best similarity to a word of the query, flags, row in the lexicon.
      Then a hash table from hashes to words, -1 for none.
    """
    slots = 64
    while slots < 2 * size:
        slots *= 2
    return (
        np.empty(size + 1, np.uint64),
        np.empty(size + 1, np.float32),
        np.empty(size + 1, np.float32),
        np.empty(size + 1, np.uint8),
        np.empty(size + 1, np.int32),
        np.full(slots, -1, np.int32),
    )


@compile_loop()
def find_word(h, known, words, frequencies, lexicon):  # type: ignore[no-untyped-def]
    """Find the number of a word among the distinct ones; a new word gets the number `known`."""
    hashes, idf, _, flags, rows, slots = words
    mask = len(slots) - 1
    at = np.int64(h >> np.uint64(20)) & mask
    while slots[at] >= 0:
        if hashes[slots[at]] == h:
            return np.int64(slots[at])
        at = (at + 1) & mask
    slots[at] = known
    codes, idfs, _ = frequencies
    hashes[known], idf[known] = h, idfs[codes[bucket(h, np.int64(WORDS))]]
    flags[known], rows[known] = np.uint8(h & _ONE) * NUMBER, -1
    ordered, starts, of_flags, of_rows, _, _ = lexicon
    place = starts[np.int64(h >> np.uint64(48))]
    while ordered[place] < h:
        place += 1
    if ordered[place] == h:
        flags[known] |= of_flags[place]
        rows[known] = of_rows[place]
    return np.int64(known)


@compile_loop()
def compare_word(word, distinct, words, lexicon, similar):  # type: ignore[no-untyped-def]
    """Write the similarities of a word to the `distinct` words of the query, and the best one."""
    _, _, best, _, rows, _ = words
    _, _, _, _, vectors, scales = lexicon
    row, greatest = rows[word], np.float32(0)
    for other in range(distinct):
        value, second = np.float32(0), rows[other]
        if word == other:
            value = np.float32(1)
        elif row >= 0 and second >= 0:
            total = np.int32(0)
            for i in range(vectors.shape[1]):
                total += np.int32(vectors[row, i]) * np.int32(vectors[second, i])
            value = np.float32(total) * scales[row] * scales[second]
        similar[word, other] = value
        greatest = max(greatest, value)
    best[word] = greatest


@compile_loop()
def read_grams(terms, ends, frequencies):  # type: ignore[no-untyped-def]
    """Make a hash table of the n-grams of a query, and the sums of their weights by kind.

    Returns:
      Hashes (0: none), how often the query has each, how many of these the hit of a row has not
      used, and the row; then the sums, float32 [4].
    """
    slots = 64
    while slots < 2 * (ends[FOURS] - ends[WORDS]):
        slots *= 2
    hashes, times = np.zeros(slots, np.uint64), np.zeros(slots, np.int32)
    left, rows = np.zeros(slots, np.int32), np.full(slots, -1, np.int64)
    codes, idfs, _ = frequencies
    norms = np.zeros(4, np.float32)
    for kind in range(PAIRS, FOURS + 1):
        for term in range(ends[kind - 1], ends[kind]):
            h = terms[term]
            at = np.int64(h >> np.uint64(24)) & (slots - 1)
            while hashes[at] != _ZERO and hashes[at] != h:
                at = (at + 1) & (slots - 1)
            hashes[at], times[at] = h, times[at] + 1
            norms[kind] += idfs[codes[bucket(h, kind)]] ** 2
    return (hashes, times, left, rows), norms


@compile_loop()
def common_words(ids, others, run):  # type: ignore[no-untyped-def]
    """Return the lengths of the longest common run of words and common subsequence.

    ids, others: int64, the words of two texts. run: int64 [2, MAX_WORDS + 1], working memory.
    """
    longest = 0
    run[:, : len(others) + 1] = 0
    for word in ids:
        run_before, order_before, left = 0, 0, 0
        for j in range(1, len(others) + 1):
            run_above, above = run[0, j], run[1, j]
            same = word == others[j - 1]
            length = run_before + 1 if same else 0
            left = order_before + 1 if same else max(above, left)
            run[0, j], run[1, j] = length, left
            longest = max(longest, length)
            run_before, order_before = run_above, above
    return longest, run[1, len(others)]


@compile_loop(fastmath={"nnan", "nsz", "reassoc"})
def write_gaps(values, out, column):  # type: ignore[no-untyped-def]
    """Write gap, rank and gap to the next of each value of a list to three columns."""
    n = len(out)
    best = values[0]
    for i in range(n):
        best = max(best, values[i])
    for i in range(n):
        value, larger, equal, below = values[i], np.int32(0), np.int32(0), _LEAST
        for j in range(n):
            larger = np.int32(larger + np.int32(values[j] > value))
            equal = np.int32(equal + np.int32(values[j] == value))
            below = max(below, values[j] if values[j] < value else _LEAST)
        out[i, column], out[i, column + 1] = best - value, larger
        # Of equal values, the next one is another of them.
        out[i, column + 2] = value - below if equal == 1 and below > _LEAST else np.float32(0)
