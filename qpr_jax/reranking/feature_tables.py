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


# Records, so that what belongs together lies together, in one array instead of many.
_KEY, _FLOAT, _INT = np.uint64, np.float32, np.int32
SLOT = np.dtype([("key", _KEY), ("row", _INT), ("flags", _INT)])
GRAM = np.dtype(
    [("key", _KEY), ("weight", _FLOAT), ("count", _INT), ("user", _INT), ("used", _INT)]
)
_NUMBERS = ("row", "flags", "count", "user", "used")
WORD = np.dtype(
    [("key", _KEY), ("idf", _FLOAT), ("best", _FLOAT), *((name, _INT) for name in _NUMBERS)],
    align=True,
)


class Lexicon(NamedTuple):
    """Words that something is known of: a hash table, and their embeddings.

    slots: SLOT [2 ** k]: the hash of a word, 0 where there is none, looked for from the slot of its
      upper bits on; its row in `vectors`, -1 for none; its flags but NUMBER, which hashes tell.
    vectors: int8 [n, e], embeddings of any length.
    scales: float32 [n], one over their lengths.
    """

    slots: np.ndarray
    vectors: np.ndarray
    scales: np.ndarray


class Scratch(NamedTuple):
    """What a thread computes with.

    grams: GRAM [_GRAM_SLOTS], a hash table of the n-grams of a query: the hash, 0 for none; the
      squared idf; the occurrences in the query; those in the candidate `user` so far.
    words: WORD [s], the distinct words of a list of hits, those of the query first: the largest
      similarity to a word of the query; the occurrences in the query and in the candidate `user`.
    slots: int32 [2 ** k], from a hash to a word, -1 for none.
    similar: float32 [s, MAX_WORDS], the similarity of each word to each of the query.
    ids, query_ids: int64 [MAX_WORDS], the words of a candidate and of the query.
    found: float32 [MAX_WORDS], the best match of each distinct word of the query.
    run: int64 [2, MAX_WORDS + 1], of `common_words`.
    norms: float64 [3], of the pairs, threes and fours of the query.
    """

    buffers: Buffers
    grams: np.ndarray
    words: np.ndarray
    slots: np.ndarray
    similar: np.ndarray
    ids: np.ndarray
    query_ids: np.ndarray
    found: np.ndarray
    run: np.ndarray
    norms: np.ndarray


def make_scratch(candidates: int) -> Scratch:
    """Scratch for lists of up to so many candidates."""
    s = MAX_WORDS * (candidates + 1)
    return Scratch(
        make_buffers(),
        np.zeros(_GRAM_SLOTS, GRAM),
        np.zeros(s, WORD),
        np.empty(1 << (2 * s).bit_length(), np.int32),
        np.empty((s, MAX_WORDS), np.float32),
        np.empty(MAX_WORDS, np.int64),
        np.empty(MAX_WORDS, np.int64),
        np.empty(MAX_WORDS, np.float32),
        np.empty((2, MAX_WORDS + 1), np.int64),
        np.empty(3, np.float64),
    )


@compile_loop(forceinline=True)
def idf_of(table, row, log_count):  # type: ignore[no-untyped-def]
    """log((N + 1) / (df + 1)), never 0; of a df of more than 12 bits, the upper ones count."""
    # Without a branch, which would be guessed wrong for every other n-gram.
    bits = np.float32(table[row] + 1).view(np.int32)
    log = np.float32((bits >> 23) - 127) * _LOG_2 + _LOGS[(bits >> 12) & 2047]
    return max(log_count - log, np.float32(0.01))


@compile_loop(forceinline=True)
def find_word(h, known, mask, words, slots, entries, counters, log_count):  # type: ignore[no-untyped-def]
    """The number of a word in the list; `known`, the number of words so far, for a new one.

    mask: of `slots`, as many as the list needs. entries: `Lexicon.slots`. counters: of words.
    """
    at = np.int64(h >> np.uint64(20)) & mask
    while slots[at] >= 0:
        if words[slots[at]].key == h:
            return np.int64(slots[at])
        at = (at + 1) & mask
    slots[at] = known
    word = words[known]
    word.key, word.idf = h, idf_of(counters, bucket(h, WORD_BITS), log_count)
    word.user, word.count, word.row = -1, 0, -1
    word.flags = np.int32(h & _ONE)
    last = len(entries) - 1
    at = np.int64(h >> np.uint64(20)) & last
    while entries[at].key != _ZERO:
        if entries[at].key == h:
            word.row = entries[at].row
            word.flags |= entries[at].flags
            break
        at = (at + 1) & last
    return np.int64(known)


@compile_loop(forceinline=True)
def compare_word(word, distinct, vectors, scales, words, similar):  # type: ignore[no-untyped-def]
    """Compute the similarity of a word to the `distinct` words of the query."""
    row, best, width = words[word].row, np.float32(0), vectors.shape[1]
    for other in range(distinct):
        value, second = np.float32(0), words[other].row
        if word == other:
            value = np.float32(1)
        elif row >= 0 and second >= 0:
            total = np.int32(0)
            for i in range(width):
                total += np.int32(vectors[row, i]) * np.int32(vectors[second, i])
            value = np.float32(total) * scales[row] * scales[second]
        similar[word, other] = value
        best = max(best, value)
    words[word].best = best


@compile_loop(forceinline=True)
def _add_gram(h, idf, mask, grams):  # type: ignore[no-untyped-def]
    """Count an n-gram of the query; return its weight."""
    at = np.int64(h >> np.uint64(24)) & mask
    while grams[at].key != _ZERO and grams[at].key != h:
        at = (at + 1) & mask
    gram = grams[at]
    if gram.key == _ZERO:
        gram.key, gram.weight, gram.count, gram.user = h, idf * idf, 0, -1
    gram.count += 1
    return gram.weight


@compile_loop()
def read_grams(count, length, tables):  # type: ignore[no-untyped-def]
    """Put the n-grams of a query into the table, their sums into `norms`; return the mask."""
    log_count, counters, _, scratch = tables
    text, words, grams = scratch.buffers.text, scratch.buffers.words, scratch.grams
    of_pairs, of_threes, of_fours = counters.pairs, counters.threes, counters.fours
    slots = 256
    while slots < 4 * length:
        slots *= 2
    mask = slots - 1
    for at in range(slots):
        grams[at].key = _ZERO
    pairs = threes = fours = 0.0
    for w in range(1, count):
        h = hash_pair(words[w - 1], words[w])
        pairs += _add_gram(h, idf_of(of_pairs, bucket(h, PAIR_BITS), log_count), mask, grams)
    gram = _ZERO
    for at in range(length):
        gram = next_gram(gram, text[at])
        if at >= 2:
            h = hash_three(gram)
            idf = idf_of(of_threes, bucket(h, THREE_BITS), log_count)
            threes += _add_gram(h, idf, mask, grams)
        if at >= 3:
            h = hash_four(gram)
            fours += _add_gram(h, idf_of(of_fours, bucket(h, FOUR_BITS), log_count), mask, grams)
    scratch.norms[0], scratch.norms[1], scratch.norms[2] = pairs, threes, fours
    return mask


@compile_loop(forceinline=True)
def match_gram(h, row, mask, grams):  # type: ignore[no-untyped-def]
    """The weight of a candidate's n-gram if the query has it (0 if not), and what is shared of it.

    An n-gram is shared as often as both have it.
    """
    at = np.int64(h >> np.uint64(24)) & mask
    while grams[at].key != _ZERO:
        gram = grams[at]
        if gram.key == h:
            gram.used = gram.used + 1 if gram.user == row else 1
            gram.user = row
            return gram.weight, gram.weight if gram.used <= gram.count else np.float32(0)
        at = (at + 1) & mask
    return np.float32(0), np.float32(0)


@compile_loop(forceinline=True)
def ratio(part, whole):  # type: ignore[no-untyped-def]
    """part / whole, 0 of nothing."""
    return np.float32(part / whole) if whole > 0 else np.float32(0)


@compile_loop()
def _lexicon_slot(h, slots):  # type: ignore[no-untyped-def]
    """The slot of a hash, which is put there if it is new."""
    mask = len(slots) - 1
    at = np.int64(h >> np.uint64(20)) & mask
    while slots[at].key != _ZERO and slots[at].key != h:
        at = (at + 1) & mask
    if slots[at].key == _ZERO:
        slots[at].key, slots[at].row = h, -1
    return at


@compile_loop()
def add_rows(slots, hashes):  # type: ignore[no-untyped-def]
    """Put words, uint64 [n], into the lexicon, with the rows 0, 1, ...; hash 0 is no word."""
    for row in range(len(hashes)):
        if hashes[row] != _ZERO:
            slots[_lexicon_slot(hashes[row], slots)].row = row


@compile_loop()
def add_flag(slots, hashes, flag):  # type: ignore[no-untyped-def]
    """Give words, uint64 [n], a flag."""
    for h in hashes:
        slots[_lexicon_slot(h, slots)].flags |= flag


@compile_loop(forceinline=True)
def common_words(count, query_count, ids, others, run):  # type: ignore[no-untyped-def]
    """Words of the longest run that both texts have, and of the longest subsequence."""
    longest = 0
    for j in range(query_count + 1):
        run[0, j] = run[1, j] = 0
    for i in range(count):
        word, run_before, order_before, left = ids[i], 0, 0, 0
        for j in range(1, query_count + 1):
            run_above, above = run[0, j], run[1, j]
            same = word == others[j - 1]
            length = run_before + 1 if same else 0
            left = order_before + 1 if same else max(above, left)
            run[0, j], run[1, j] = length, left
            longest = max(longest, length)
            run_before, order_before = run_above, above
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
