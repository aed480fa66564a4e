"""The features of the hits of a query, in compiled loops over the bytes of their texts.

The words and n-grams of the query go into small hash tables once; each candidate is one pass. What
a word costs - its weight, its embedding, its similarity to the words of the query - is computed
for each distinct word of a list of hits once.
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
    read_words,
)
from qpr_jax.loops import compile_loop

NUMBER, NEGATION, QUESTION_WORD = 1, 2, 4  # flags of words

# The columns of the features.
FEATURES = (
    "distance",
    "distance_gap",
    "distance_next",
    "distance_rank",
    "bm25",
    "bm25_gap",
    "bm25_rank",
    "overlap_query",
    "overlap_question",
    "unmatched_query",
    "unmatched_question",
    "cosine_words",
    "cosine_pairs",
    "cosine_threes",
    "cosine_fours",
    "fours_gap",
    "fours_rank",
    "match_query",
    "match_question",
    "match_gap",
    "numbers_query",
    "numbers_question",
    "negations",
    "question_words",
    "length_query",
    "length_question",
)
_COLUMN = {name: i for i, name in enumerate(FEATURES)}
_DISTANCE, _BM25, _OVERLAP = _COLUMN["distance"], _COLUMN["bm25"], _COLUMN["overlap_query"]
_UNMATCHED, _COSINE = _COLUMN["unmatched_query"], _COLUMN["cosine_words"]
_FOURS, _FOURS_GAP = _COLUMN["cosine_fours"], _COLUMN["fours_gap"]
_MATCH, _MATCH_GAP, _NUMBERS = (
    _COLUMN["match_query"],
    _COLUMN["match_gap"],
    _COLUMN["numbers_query"],
)
_NEGATIONS, _LENGTH = _COLUMN["negations"], _COLUMN["length_query"]
_K1, _B = 1.2, 0.75  # of BM25
_GRAM_SLOTS = 1 << 13  # more than twice the n-grams of a text
_LOGS = np.log(np.maximum(np.arange(4096), 1)).astype(np.float32)
_LOG_2 = np.float32(math.log(2))
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
    found: np.ndarray  # float32 [MAX_WORDS], the best match of each word of the query
    norms: np.ndarray  # float64 [4], of the pairs, threes and fours of the query; the table's mask


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
    ids, found = np.empty(MAX_WORDS, np.int64), np.empty(MAX_WORDS, np.float32)
    return Scratch(make_buffers(), grams, words, ids, found, np.empty(4, np.float64))


@compile_loop()
def compute(queries, questions, starts, facts, counters, lexicon, scratch, out):  # type: ignore[no-untyped-def]
    """Fill the columns of `out` that texts give, then those that compare with the best of a list.

    Args:
      queries, questions: (bytes, offsets) of `text_kernels.as_bytes`.
      starts: int64 [q + 1], of the candidates of each query.
      facts: (documents, words of a document on average).
      counters, lexicon, scratch: see there.
      out: float32 [m, features], with the distances.
    """
    log_count = np.float32(math.log(facts[0] + 1.0))
    for query in range(len(starts) - 1):
        first, stop = starts[query], starts[query + 1]
        if first == stop:
            continue
        size = questions[1][stop] - questions[1][first]
        tables = log_count, counters, lexicon, scratch
        count, distinct, slots = _read_query(queries, query, size, tables)
        known = distinct
        for row in range(first, stop):
            state = row, distinct, known, slots
            known = _candidate(questions, state, facts[1], tables, out[row])
            out[row, _LENGTH] = count
        _compare(out[first:stop])


@compile_loop()
def _idf(table, row, log_count):  # type: ignore[no-untyped-def]
    """log((N + 1) / (df + 1)), never 0."""
    x, log = np.int64(table[row]) + 1, np.float32(0)
    while x >= 4096:
        x >>= 1
        log += _LOG_2
    return max(log_count - log - _LOGS[x], np.float32(0.01))


@compile_loop()
def _read_query(queries, query, size, tables):  # type: ignore[no-untyped-def]
    """Read a query: its words, its distinct words, and the slots of the list's word table.

    size: bytes of all candidates.
    """
    log_count, counters, lexicon, scratch = tables
    buffers, words = scratch.buffers, scratch.words
    data, offsets = queries
    count, length = read_words(data, offsets[query], offsets[query + 1], buffers)
    slots = 64
    while slots < size + length and slots < len(words.slots):
        slots *= 2
    words.slots[:slots] = -1
    distinct = 0
    for w in range(count):
        word = _find_word(buffers.words[w], distinct, slots, tables)
        distinct = max(distinct, word + 1)
        words.counts[word] += 1
    for word in range(distinct):
        _compare_word(word, distinct, lexicon, words)
    _read_grams(count, length, log_count, counters, scratch)
    return count, distinct, slots


@compile_loop()
def _find_word(h, known, slots, tables):  # type: ignore[no-untyped-def]
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
    words.idf[known] = _idf(counters.words, bucket(h, WORD_BITS), log_count)
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


@compile_loop()
def _compare_word(word, distinct, lexicon, words):  # type: ignore[no-untyped-def]
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
def _read_grams(count, length, log_count, counters, scratch):  # type: ignore[no-untyped-def]
    """Put the n-grams of a query into the table; their sums of squared weights into `norms`."""
    text, words, grams = scratch.buffers.text, scratch.buffers.words, scratch.grams
    slots, norms = 256, scratch.norms
    while slots < 4 * length:
        slots *= 2
    mask = slots - 1
    grams.keys[:slots] = _ZERO
    norms[:] = 0
    for w in range(1, count):
        h = hash_pair(words[w - 1], words[w])
        norms[0] += _add_gram(h, _idf(counters.pairs, bucket(h, PAIR_BITS), log_count), mask, grams)
    gram = _ZERO
    for at in range(length):
        gram = next_gram(gram, text[at])
        if at >= 2:
            h = hash_three(gram)
            idf = _idf(counters.threes, bucket(h, THREE_BITS), log_count)
            norms[1] += _add_gram(h, idf, mask, grams)
        if at >= 3:
            h = hash_four(gram)
            idf = _idf(counters.fours, bucket(h, FOUR_BITS), log_count)
            norms[2] += _add_gram(h, idf, mask, grams)
    norms[3] = mask


@compile_loop()
def _add_gram(h, idf, mask, grams):  # type: ignore[no-untyped-def]
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
def _match_gram(h, row, mask, grams):  # type: ignore[no-untyped-def]
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


@compile_loop()
def _candidate(questions, state, mean_length, tables, out):  # type: ignore[no-untyped-def]
    """Fill a row of features; return how many words of the list are known then."""
    row, distinct, known, slots = state
    lexicon, scratch = tables[2], tables[3]
    buffers, words, found = scratch.buffers, scratch.words, scratch.found
    data, offsets = questions
    count, length = read_words(data, offsets[row], offsets[row + 1], buffers)
    found[:distinct] = 0
    for w in range(count):
        word = _find_word(buffers.words[w], known, slots, tables)
        if word == known:
            _compare_word(word, distinct, lexicon, words)
            known += 1
        if words.user[word] != row:
            words.user[word], words.used[word] = row, 0
        words.used[word] += 1
        scratch.ids[w] = word
        similar = words.similar[word]
        for i in range(distinct):
            found[i] = max(found[i], similar[i])
    _question_words(count, scratch, out)
    _query_words(row, count, distinct, mean_length, scratch, out)
    _grams(row, count, length, tables, out)
    return known


@compile_loop()
def _question_words(count, scratch, out):  # type: ignore[no-untyped-def]
    """Features from the words of the candidate; `_query_words` finishes two of the columns."""
    words = scratch.words
    total = shared = norm = best = heaviest = np.float32(0)
    numbers = negations = question_words = 0
    for w in range(count):
        word = scratch.ids[w]
        idf, flags = words.idf[word], words.flags[word]
        total += idf
        norm += idf * idf
        best += idf * words.best[word]
        negations += flags & NEGATION != 0
        if words.counts[word]:
            shared += idf
        else:
            heaviest = max(heaviest, idf)
            numbers += flags & NUMBER != 0
            question_words += flags & QUESTION_WORD != 0
    out[_OVERLAP + 1] = _ratio(shared, total)
    out[_UNMATCHED + 1] = heaviest
    out[_MATCH + 1] = _ratio(best, total)
    out[_NUMBERS + 1] = numbers
    out[_NEGATIONS] = negations
    out[_NEGATIONS + 1] = question_words
    out[_LENGTH + 1] = count
    out[_COSINE] = norm


@compile_loop()
def _query_words(row, count, distinct, mean_length, scratch, out):  # type: ignore[no-untyped-def]
    """Features from the words of the query, after `_question_words`."""
    words, found = scratch.words, scratch.found
    total = shared = norm = dot = best = heaviest = bm25 = np.float32(0)
    numbers = negations = question_words = 0
    length = np.float32(_K1 * (1 - _B + _B * count / mean_length))
    for word in range(distinct):
        idf, flags, here = words.idf[word], words.flags[word], words.counts[word]
        total += idf
        norm += here * idf * idf
        best += idf * found[word]
        negations += here * (flags & NEGATION != 0)
        if words.user[word] == row:
            used = words.used[word]
            shared += idf
            dot += min(here, used) * idf * idf
            bm25 += idf * np.float32(_K1 + 1) * used / (used + length)
        else:
            heaviest = max(heaviest, idf)
            numbers += flags & NUMBER != 0
            question_words += flags & QUESTION_WORD != 0
    out[_BM25] = bm25
    out[_OVERLAP] = _ratio(shared, total)
    out[_UNMATCHED] = heaviest
    out[_COSINE] = _ratio(dot, math.sqrt(norm * out[_COSINE]))
    out[_MATCH] = _ratio(best, total)
    out[_NUMBERS] = numbers
    out[_NEGATIONS] = abs(negations - out[_NEGATIONS])
    out[_NEGATIONS + 1] += question_words


@compile_loop()
def _grams(row, count, length, tables, out):  # type: ignore[no-untyped-def]
    """Cosines over pairs of words and character n-grams."""
    log_count, counters, _, scratch = tables
    text, words, grams = scratch.buffers.text, scratch.buffers.words, scratch.grams
    norms, mask = scratch.norms, np.int64(scratch.norms[3])
    dot = norm = np.float32(0)
    for w in range(1, count):
        h = hash_pair(words[w - 1], words[w])
        weight, shared = _match_gram(h, row, mask, grams)
        if weight == 0:
            weight = _idf(counters.pairs, bucket(h, PAIR_BITS), log_count) ** 2
        dot, norm = dot + shared, norm + weight
    out[_COSINE + 1] = _ratio(dot, math.sqrt(norm * norms[0]))
    dot3 = norm3 = dot4 = norm4 = np.float32(0)
    gram = _ZERO
    for at in range(length):
        gram = next_gram(gram, text[at])
        if at >= 2:
            h = hash_three(gram)
            weight, shared = _match_gram(h, row, mask, grams)
            if weight == 0:
                weight = _idf(counters.threes, bucket(h, THREE_BITS), log_count) ** 2
            dot3, norm3 = dot3 + shared, norm3 + weight
        if at >= 3:
            h = hash_four(gram)
            weight, shared = _match_gram(h, row, mask, grams)
            if weight == 0:
                weight = _idf(counters.fours, bucket(h, FOUR_BITS), log_count) ** 2
            dot4, norm4 = dot4 + shared, norm4 + weight
    out[_COSINE + 2] = _ratio(dot3, math.sqrt(norm3 * norms[1]))
    out[_COSINE + 3] = _ratio(dot4, math.sqrt(norm4 * norms[2]))


@compile_loop()
def _ratio(part, whole):  # type: ignore[no-untyped-def]
    return np.float32(part / whole) if whole > 0 else np.float32(0)


@compile_loop()
def _compare(out):  # type: ignore[no-untyped-def]
    """Fill the columns of gaps and ranks, from those of a list."""
    values = np.empty(len(out), np.float32)
    for i in range(len(out)):
        values[i] = -out[i, _DISTANCE]
    _gaps(values, out, _DISTANCE + 1)
    _ranks(values, out, _DISTANCE + 3)
    for i in range(len(out)):
        after = np.float32(-np.inf)
        for j in range(len(out)):
            if j != i and values[j] <= values[i]:
                after = max(after, values[j])
        out[i, _DISTANCE + 2] = values[i] - after if after > -np.inf else np.float32(0)
    for i in range(len(out)):
        values[i] = out[i, _BM25]
    _gaps(values, out, _BM25 + 1)
    _ranks(values, out, _BM25 + 2)
    for i in range(len(out)):
        values[i] = out[i, _FOURS]
    _gaps(values, out, _FOURS_GAP)
    _ranks(values, out, _FOURS_GAP + 1)
    for i in range(len(out)):
        values[i] = out[i, _MATCH] + out[i, _MATCH + 1]
    _gaps(values, out, _MATCH_GAP)


@compile_loop()
def _gaps(values, out, column):  # type: ignore[no-untyped-def]
    """Write how far each value is below the largest."""
    best = values[0]
    for value in values:
        best = max(best, value)
    for i in range(len(values)):
        out[i, column] = best - values[i]


@compile_loop()
def _ranks(values, out, column):  # type: ignore[no-untyped-def]
    """Write how many values are larger."""
    for i in range(len(values)):
        rank = np.int32(0)
        for value in values:
            rank += value > values[i]
        out[i, column] = rank


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
