"""Hash tables for the features of a list of hits, in compiled loops.

They hold the n-grams of a query, the distinct words of a list, and words with an embedding or flag.
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
from qpr_jax.reranking.word_weights import MOST, UNMATCHED

NUMBER, NEGATION, QUESTION_WORD = 1, 2, 4  # flags of words
_GRAM_SLOTS = 1 << 13  # more than twice the n-grams of a text
_LOGS = np.log1p(np.arange(2048) / 2048).astype(np.float32)  # of the mantissa of a float
_LOG_2 = np.float32(math.log(2))
_LEAST = np.float32(-3e38)
_ZERO, _ONE = np.uint64(0), np.uint64(1)


# Records, so that the fields of an entry are adjacent in memory.
_KEY, _FLOAT, _INT = np.uint64, np.float32, np.int32
SLOT = np.dtype([("key", _KEY), ("row", _INT), ("flags", _INT)])
GRAM = np.dtype(
    [
        ("key", _KEY),
        ("weight", _FLOAT),
        ("count", _INT),
        ("candidate", _INT),
        ("in_candidate", _INT),
    ]
)
_NUMBERS = ("row", "flags", "count", "candidate", "in_candidate")
WORD = np.dtype(
    [("key", _KEY), ("idf", _FLOAT), ("best", _FLOAT), *((name, _INT) for name in _NUMBERS)],
    align=True,
)


class Lexicon(NamedTuple):
    """Words with an embedding or a flag: a hash table, and the embeddings.

    slots: SLOT [2 ** k], with linear probing from the slot of the upper bits of a hash: the hash of
      a word, 0 if empty; its row in `vectors`, -1 for none; its flags except NUMBER, which is a
      bit of the hash.
    vectors: int8 [n, e], embeddings of any length.
    scales: float32 [n], the reciprocals of their lengths.
    """

    slots: np.ndarray
    vectors: np.ndarray
    scales: np.ndarray


class Scratch(NamedTuple):
    """The working memory of a thread.

    grams: GRAM [_GRAM_SLOTS], a hash table of the n-grams of a query: `key` is the hash, 0 if
      empty; `weight` the squared idf; `count` the occurrences in the query; `in_candidate` those
      in `candidate`, the row of the last candidate with it.
    words: WORD [s], the distinct words of a list of hits, those of the query first: `best` is the
      largest similarity to a word of the query; the other fields are as in `grams` and `Lexicon`.
    slots: int32 [2 ** k], from a hash to a position in `words`, -1 for none.
    similar: float32 [s, MAX_WORDS], the similarity of each word to each word of the query.
    ids, query_ids: int64 [MAX_WORDS], the words of a candidate and of the query.
    found: float32 [MAX_WORDS], the best match of each distinct word of the query.
    run: int64 [2, MAX_WORDS + 1], the table of `common_words`.
    unmatched: uint64 [2 * UNMATCHED + 1], words in which query and candidate differ; the last place
      is for a word too many, which is written before it is known to be one.
    weight_rows: int32 [MOST], their learned weights.
    norms: float64 [3], the sums of the weights of the query's word pairs, 3-grams, 4-grams.
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
    unmatched: np.ndarray
    weight_rows: np.ndarray
    norms: np.ndarray


def make_scratch(candidates: int) -> Scratch:
    """Allocate the memory for lists of up to this many candidates."""
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
        np.empty(2 * UNMATCHED + 1, np.uint64),
        np.empty(MOST, np.int32),
        np.empty(3, np.float64),
    )


@compile_loop(forceinline=True)
def idf_of(table, row, log_count):  # type: ignore[no-untyped-def]
    """Compute log((N + 1) / (df + 1)), at least 0.01; df is rounded to its upper 12 bits."""
    # Without a branch, since the processor would mispredict it for every other n-gram.
    bits = np.float32(table[row] + 1).view(np.int32)
    log = np.float32((bits >> 23) - 127) * _LOG_2 + _LOGS[(bits >> 12) & 2047]
    return max(log_count - log, np.float32(0.01))


@compile_loop(forceinline=True)
def find_word(h, known, mask, words, slots, entries, counters, log_count):  # type: ignore[no-untyped-def]
    """Find the position of a word in `words`; a new word is put at `known`, the words so far.

    mask: the size of `slots` that the list needs, less 1. entries: `Lexicon.slots`. counters: the
    document frequencies of words.
    """
    at = np.int64(h >> np.uint64(20)) & mask
    while slots[at] >= 0:
        if words[slots[at]].key == h:
            return np.int64(slots[at])
        at = (at + 1) & mask
    slots[at] = known
    word = words[known]
    word.key, word.idf = h, idf_of(counters, bucket(h, WORD_BITS), log_count)
    word.candidate, word.count, word.row = -1, 0, -1
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
    """Write the similarities of a word to the `distinct` words of the query, and the best one."""
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
        gram.key, gram.weight, gram.count, gram.candidate = h, idf * idf, 0, -1
    gram.count += 1
    return gram.weight


@compile_loop()
def read_grams(count, length, tables):  # type: ignore[no-untyped-def]
    """Fill `grams` and `norms` with the n-grams of a query; return the mask of `grams`."""
    log_count, counters, _, scratch = tables
    (text, words), grams, norms = scratch[0], scratch[1], scratch[-1]
    _, of_pairs, of_threes, of_fours = counters
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
    norms[0], norms[1], norms[2] = pairs, threes, fours
    return mask


@compile_loop(forceinline=True)
def match_gram(h, row, mask, grams, table, bits, log_count):  # type: ignore[no-untyped-def]
    """Return the weight of a candidate's n-gram, its squared idf, and its shared weight.

    table, bits: document frequencies of n-grams of its kind, for one that the query lacks.
    The shared weight is 0 once the candidate has had the n-gram as often as the query has it.
    """
    at = np.int64(h >> np.uint64(24)) & mask
    while grams[at].key != _ZERO:
        gram = grams[at]
        if gram.key == h:
            gram.in_candidate = gram.in_candidate + 1 if gram.candidate == row else 1
            gram.candidate = row
            return gram.weight, gram.weight if gram.in_candidate <= gram.count else np.float32(0)
        at = (at + 1) & mask
    return idf_of(table, bucket(h, bits), log_count) ** 2, np.float32(0)


@compile_loop(forceinline=True)
def ratio(part, whole):  # type: ignore[no-untyped-def]
    """Return part / whole, or 0 if whole is 0."""
    return np.float32(part / whole) if whole > 0 else np.float32(0)


@compile_loop()
def _lexicon_slot(h, slots):  # type: ignore[no-untyped-def]
    """Find the slot of a hash; a new hash is put there."""
    mask = len(slots) - 1
    at = np.int64(h >> np.uint64(20)) & mask
    while slots[at].key != _ZERO and slots[at].key != h:
        at = (at + 1) & mask
    if slots[at].key == _ZERO:
        slots[at].key, slots[at].row = h, -1
    return at


@compile_loop()
def add_rows(slots, hashes):  # type: ignore[no-untyped-def]
    """Put n words, hashes uint64 [n], into the lexicon with rows 0 to n - 1; hash 0 is skipped."""
    for row in range(len(hashes)):
        if hashes[row] != _ZERO:
            slots[_lexicon_slot(hashes[row], slots)].row = row


@compile_loop()
def add_flag(slots, hashes, flag):  # type: ignore[no-untyped-def]
    """Give words, hashes uint64 [n], a flag."""
    for h in hashes:
        slots[_lexicon_slot(h, slots)].flags |= flag


@compile_loop(forceinline=True)
def common_words(count, query_count, ids, others, run):  # type: ignore[no-untyped-def]
    """Return the lengths of the longest common run of words and common subsequence."""
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
def write_gaps_and_ranks(values, out, gap, rank, after):  # type: ignore[no-untyped-def]
    """Write gap, rank and gap to the next of each value of a list to these columns; -1: none."""
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
