"""Tables that the features of a list of hits are computed with, in compiled loops.

The n-grams of a query, the distinct words of a list, and the words with an embedding or a flag.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qpr_jax.index.text_kernels import (
    FOUR_BITS,
    MAX_WORDS,
    PAIR_BITS,
    THREE_BITS,
    WORD_BITS,
    Buffers,
    bucket,
    hash_four,
    hash_pair,
    hash_three,
    make_buffers,
    next_gram,
)
from qpr_jax.loops import compile_loop

NUMBER, NEGATION, QUESTION_WORD = 1, 2, 4  # flags of words
_GRAM_SLOTS = 1 << 13  # more than twice the n-grams of a text
_LOGS = np.log1p(np.arange(2048) / 2048).astype(np.float32)  # of the mantissa of a float
_LOG_2 = np.float32(math.log(2))
_LEAST = np.float32(-3e38)
_ZERO, _ONE = np.uint64(0), np.uint64(1)


class Lexicon(NamedTuple):
    """Words that something is known of: a hash table, and their embeddings.

    keys: uint64 [2 ** k], hashes of words, 0 where there is none; looked for from the slot of the
      upper bits on.
    rows: int32 [2 ** k], their rows in `vectors`, -1 for none.
    flags: uint8 [2 ** k], but NUMBER, which hashes tell.
    vectors: int8 [n, e], embeddings of any length.
    scales: float32 [n], one over their lengths.
    """

    keys: np.ndarray
    rows: np.ndarray
    flags: np.ndarray
    vectors: np.ndarray
    scales: np.ndarray


class Grams(NamedTuple):
    """A hash table of the n-grams of a query: [_GRAM_SLOTS] each.

    keys, weights, counts: the hash, 0 for none; the squared idf; the occurrences in the query.
    user, used: occurrences in the candidate `user` so far.
    """

    keys: np.ndarray
    weights: np.ndarray
    counts: np.ndarray
    user: np.ndarray
    used: np.ndarray


class Words(NamedTuple):
    """The distinct words of a list of hits, those of the query first: [s] each but `slots`.

    slots: int64 [2 ** k], from a hash to a word, -1 for none.
    keys, idf, rows, flags: of a word.
    counts: occurrences in the query.
    best: its largest similarity to a word of the query.
    similar: float32 [s, MAX_WORDS], to each word of the query.
    user, used: occurrences in the candidate `user` so far.
    """

    slots: np.ndarray
    keys: np.ndarray
    idf: np.ndarray
    rows: np.ndarray
    flags: np.ndarray
    counts: np.ndarray
    best: np.ndarray
    similar: np.ndarray
    user: np.ndarray
    used: np.ndarray


class Scratch(NamedTuple):
    """What a thread computes with."""

    buffers: Buffers
    grams: Grams
    words: Words
    ids: np.ndarray  # int64 [MAX_WORDS], the words of a candidate
    query_ids: np.ndarray  # int64 [MAX_WORDS], those of the query
    found: np.ndarray  # float32 [MAX_WORDS], the best match of each distinct word of the query
    run: np.ndarray  # int64 [2, MAX_WORDS + 1], of `common_words`
    norms: np.ndarray  # float64 [3], of the pairs, threes and fours of the query


def make_scratch(candidates: int) -> Scratch:
    """Scratch for lists of up to so many candidates."""
    n = _GRAM_SLOTS
    grams = Grams(
        np.empty(n, np.uint64),
        np.empty(n, np.float32),
        np.empty(n, np.int32),
        np.empty(n, np.int64),
        np.empty(n, np.int32),
    )
    s = MAX_WORDS * (candidates + 1)
    words = Words(
        np.empty(1 << (2 * s).bit_length(), np.int64),
        np.empty(s, np.uint64),
        np.empty(s, np.float32),
        np.empty(s, np.int32),
        np.empty(s, np.uint8),
        np.empty(s, np.int32),
        np.empty(s, np.float32),
        np.empty((s, MAX_WORDS), np.float32),
        np.empty(s, np.int64),
        np.empty(s, np.int32),
    )
    ids, query_ids = np.empty(MAX_WORDS, np.int64), np.empty(MAX_WORDS, np.int64)
    found, run = np.empty(MAX_WORDS, np.float32), np.empty((2, MAX_WORDS + 1), np.int64)
    norms = np.empty(3, np.float64)
    return Scratch(make_buffers(), grams, words, ids, query_ids, found, run, norms)


@compile_loop(forceinline=True)
def idf_of(table, row, log_count):  # type: ignore[no-untyped-def]
    """log((N + 1) / (df + 1)), never 0; of a df of more than 12 bits, the upper ones count."""
    # Without a branch, which would be guessed wrong for every other n-gram.
    bits = np.float32(table[row] + 1).view(np.int32)
    log = np.float32((bits >> 23) - 127) * _LOG_2 + _LOGS[(bits >> 12) & 2047]
    return max(log_count - log, np.float32(0.01))


@compile_loop(forceinline=True)
def find_word(h, known, slots, tables):  # type: ignore[no-untyped-def]
    """The number of a word in the list; `known`, the number of words so far, for a new one."""
    log_count, counters, lexicon, scratch = tables
    words = scratch.words
    at = np.int64(h >> np.uint64(20)) & (slots - 1)
    while words.slots[at] >= 0:
        if words.keys[words.slots[at]] == h:
            return words.slots[at]
        at = (at + 1) & (slots - 1)
    words.slots[at] = known
    words.keys[known] = h
    words.idf[known] = idf_of(counters.words, bucket(h, WORD_BITS), log_count)
    words.user[known], words.counts[known], words.rows[known] = -1, 0, -1
    flags = np.uint8(h & _ONE)
    mask = len(lexicon.keys) - 1
    at = np.int64(h >> np.uint64(20)) & mask
    while lexicon.keys[at] != _ZERO:
        if lexicon.keys[at] == h:
            words.rows[known] = lexicon.rows[at]
            flags |= lexicon.flags[at]
            break
        at = (at + 1) & mask
    words.flags[known] = flags
    return known


@compile_loop(forceinline=True)
def compare_word(word, distinct, lexicon, words):  # type: ignore[no-untyped-def]
    """Compute the similarity of a word to the `distinct` words of the query."""
    row, best = words.rows[word], np.float32(0)
    for other in range(distinct):
        value, second = np.float32(0), words.rows[other]
        if word == other:
            value = np.float32(1)
        elif row >= 0 and second >= 0:
            a, b, total = lexicon.vectors[row], lexicon.vectors[second], np.int32(0)
            for i in range(len(a)):
                total += np.int32(a[i]) * np.int32(b[i])
            value = np.float32(total) * lexicon.scales[row] * lexicon.scales[second]
        words.similar[word, other] = value
        best = max(best, value)
    words.best[word] = best


@compile_loop()
def add_gram(h, idf, mask, grams):  # type: ignore[no-untyped-def]
    """Count an n-gram of the query; return its weight."""
    at = np.int64(h >> np.uint64(24)) & mask
    while grams.keys[at] != _ZERO and grams.keys[at] != h:
        at = (at + 1) & mask
    if grams.keys[at] == _ZERO:
        grams.keys[at], grams.weights[at], grams.counts[at] = h, idf * idf, 0
        grams.user[at] = -1
    grams.counts[at] += 1
    return grams.weights[at]


@compile_loop()
def read_grams(count, length, tables):  # type: ignore[no-untyped-def]
    """Put the n-grams of a query into the table, their sums into `norms`; return the mask."""
    log_count, counters, _, scratch = tables
    text, words, grams = scratch.buffers.text, scratch.buffers.words, scratch.grams
    slots = 256
    while slots < 4 * length:
        slots *= 2
    mask = slots - 1
    for at in range(slots):
        grams.keys[at] = _ZERO
    pairs = threes = fours = 0.0
    for w in range(1, count):
        h = hash_pair(words[w - 1], words[w])
        pairs += add_gram(h, idf_of(counters.pairs, bucket(h, PAIR_BITS), log_count), mask, grams)
    gram = _ZERO
    for at in range(length):
        gram = next_gram(gram, text[at])
        if at >= 2:
            h = hash_three(gram)
            idf = idf_of(counters.threes, bucket(h, THREE_BITS), log_count)
            threes += add_gram(h, idf, mask, grams)
        if at >= 3:
            h = hash_four(gram)
            idf = idf_of(counters.fours, bucket(h, FOUR_BITS), log_count)
            fours += add_gram(h, idf, mask, grams)
    scratch.norms[0], scratch.norms[1], scratch.norms[2] = pairs, threes, fours
    return mask


@compile_loop(forceinline=True)
def match_gram(h, row, mask, grams):  # type: ignore[no-untyped-def]
    """The weight of a candidate's n-gram if the query has it (0 if not), and what is shared of it.

    An n-gram is shared as often as both have it.
    """
    at = np.int64(h >> np.uint64(24)) & mask
    while grams.keys[at] != _ZERO:
        if grams.keys[at] == h:
            if grams.user[at] != row:
                grams.user[at], grams.used[at] = row, 0
            grams.used[at] += 1
            weight = grams.weights[at]
            return weight, weight if grams.used[at] <= grams.counts[at] else np.float32(0)
        at = (at + 1) & mask
    return np.float32(0), np.float32(0)


@compile_loop(forceinline=True)
def ratio(part, whole):  # type: ignore[no-untyped-def]
    """part / whole, 0 of nothing."""
    return np.float32(part / whole) if whole > 0 else np.float32(0)


@compile_loop()
def _lexicon_slot(h, keys):  # type: ignore[no-untyped-def]
    """The slot of a hash, which is put there if it is new."""
    mask = len(keys) - 1
    at = np.int64(h >> np.uint64(20)) & mask
    while keys[at] != _ZERO and keys[at] != h:
        at = (at + 1) & mask
    keys[at] = h
    return at


@compile_loop()
def add_rows(lexicon, hashes):  # type: ignore[no-untyped-def]
    """Put words, uint64 [n], into the lexicon, with the rows 0, 1, ...; hash 0 is no word."""
    for row in range(len(hashes)):
        if hashes[row] != _ZERO:
            lexicon.rows[_lexicon_slot(hashes[row], lexicon.keys)] = row


@compile_loop()
def add_flag(lexicon, hashes, flag):  # type: ignore[no-untyped-def]
    """Give words, uint64 [n], a flag."""
    for h in hashes:
        lexicon.flags[_lexicon_slot(h, lexicon.keys)] |= flag


@compile_loop(forceinline=True)
def common_words(count, query_count, scratch):  # type: ignore[no-untyped-def]
    """Words of the longest run that both texts have, and of the longest subsequence."""
    ids, others, run = scratch.ids, scratch.query_ids, scratch.run
    longest = 0
    for j in range(query_count + 1):
        run[0, j] = run[1, j] = 0
    for i in range(count):
        run_before = order_before = 0  # of the words before both
        for j in range(1, query_count + 1):
            run_above, order_above = run[0, j], run[1, j]
            if ids[i] == others[j - 1]:
                run[0, j], run[1, j] = run_before + 1, order_before + 1
                longest = max(longest, run[0, j])
            else:
                run[0, j], run[1, j] = 0, max(order_above, run[1, j - 1])
            run_before, order_before = run_above, order_above
    return longest, run[1, query_count]


@compile_loop(fastmath={"nnan", "nsz", "reassoc"})
def gaps_and_ranks(values, out, gap, rank, after):  # type: ignore[no-untyped-def]
    """Write to these columns (-1 for none) how each value compares with the others of a list."""
    n = len(out)
    best = values[0]
    for i in range(n):
        best = max(best, values[i])
    for i in range(n):
        value, larger = values[i], np.int32(0)
        for j in range(n):
            larger = np.int32(larger + np.int32(values[j] > value))
        out[i, gap], out[i, rank] = best - value, larger
        if after >= 0:
            equal, below = np.int32(0), _LEAST
            for j in range(n):
                equal = np.int32(equal + np.int32(values[j] == value))
                below = max(below, values[j] if values[j] < value else _LEAST)
            # Of equal values, the next one is another of them.
            out[i, after] = value - below if equal == 1 and below > _LEAST else np.float32(0)
