"""The features of the hits of a query, in compiled loops over the bytes of their texts.

The words and n-grams of the query go into small hash tables once; each candidate is read in one
pass. The costly values of a word - its weight, its embedding, its similarity to the words of the
query - are computed once for each distinct word of a list of hits.
"""

from __future__ import annotations

import math

import numpy as np

from qpr_jax.index.text_kernels import (
    FOUR_BITS,
    PAIR_BITS,
    THREE_BITS,
    hash_four,
    hash_pair,
    hash_three,
    next_gram,
    read_words,
)
from qpr_jax.loops import compile_loop
from qpr_jax.reranking.feature_tables import (
    NEGATION,
    NUMBER,
    QUESTION_WORD,
    common_words,
    compare_word,
    find_word,
    match_gram,
    ratio,
    read_grams,
    write_gaps_and_ranks,
)
from qpr_jax.reranking.word_weights import UNMATCHED, write_rows

# The columns. `_query` is about the words of the query, `_question` about those of the hit; `_gap`
# is the difference from the best value of the list to this one, `_next` from this one to the next
# lower, `_rank` the number of better values.
FEATURES = (
    "distance",
    "distance_gap",
    "distance_next",
    "distance_rank",
    "bm25",
    "bm25_gap",
    "bm25_rank",
    "overlap_query",  # share of the words that the other text has, too, weighted by idf
    "overlap_question",
    "unmatched_query",  # the greatest idf of a word that the other text lacks
    "unmatched_question",
    "cosine_words",  # TF-IDF cosine; the dot product takes the smaller count
    "cosine_pairs",
    "cosine_threes",
    "cosine_fours",
    "fours_gap",
    "fours_rank",
    "match_query",  # similarity of each word to the nearest of the other, mean weighted by idf
    "match_question",
    "match_gap",  # of match_query + match_question
    "numbers_query",  # words with a digit that the other text lacks
    "numbers_question",
    "negations",  # difference of their numbers
    "question_words",  # those that only one text has
    "length_query",
    "length_question",
    "miss_query",  # the greatest idf * (1 - match) of a word
    "miss_question",
    "far_query",  # the greatest idf of a word with a match below 0.5
    "far_question",
    "missing_query",  # the sum of idf * (1 - match)
    "missing_question",
    "first_word",  # whether it is the same
    "last_word",
    "common_run",  # the longest common run of words, as a share of the longer text
    "common_order",  # the longest common subsequence of words, likewise
    "idf_query",  # the sum
    "idf_question",
    "far_words_query",  # number of words with a match below 0.5
    "far_words_question",
    "threes_gap",
    "threes_rank",
    "fours_next",
    "match_rank",
    "match_next",
    "missing_gap",
    "missing_rank",
    "miss_gap",
    "miss_rank",
    "word_weights",  # the sum of the learned weights of the words in which the texts differ
    "word_weights_gap",
)
WORD_WEIGHTS = FEATURES[-2:]
_COLUMN = {name: i for i, name in enumerate(FEATURES)}
_DISTANCE, _BM25, _OVERLAP = _COLUMN["distance"], _COLUMN["bm25"], _COLUMN["overlap_query"]
_UNMATCHED, _COSINE = _COLUMN["unmatched_query"], _COLUMN["cosine_words"]
_FOURS_GAP, _MATCH, _MATCH_GAP = _COLUMN["fours_gap"], _COLUMN["match_query"], _COLUMN["match_gap"]
_NUMBERS, _NEGATIONS = _COLUMN["numbers_query"], _COLUMN["negations"]
_QUESTION_WORDS, _LENGTH = _COLUMN["question_words"], _COLUMN["length_query"]
_MISS, _FAR, _MISSING = _COLUMN["miss_query"], _COLUMN["far_query"], _COLUMN["missing_query"]
_FIRST_WORD, _IDF, _FAR_WORDS = (
    _COLUMN["first_word"],
    _COLUMN["idf_query"],
    _COLUMN["far_words_query"],
)
_THREES_GAP, _FOURS_NEXT = _COLUMN["threes_gap"], _COLUMN["fours_next"]
_MATCH_RANK, _MISSING_GAP = _COLUMN["match_rank"], _COLUMN["missing_gap"]
_MISS_GAP, _WEIGHTS = _COLUMN["miss_gap"], _COLUMN["word_weights"]
_K1, _B = 1.2, 0.75  # of BM25
_NEAR = np.float32(0.5)  # the least match of a word that is not far
_ZERO = np.uint64(0)


@compile_loop()
def compute(queries, questions, starts, facts, counters, lexicon, weights, scratch, out):  # type: ignore[no-untyped-def]
    """Write the features of the texts to `out`, then gaps and ranks within each list.

    Args:
      queries, questions: (bytes, offsets) of `text_kernels.as_bytes`.
      starts: int64 [q + 1], of the candidates of each query.
      facts: (number of documents, their mean length in words).
      counters, lexicon, scratch: the fields of `Statistics.counters`, `Lexicon` and `Scratch`.
      weights: float32 [2 ** word_weights.BITS].
      out: float32 [m, features]; has the distances already.
    """
    log_count = np.float32(math.log(facts[0] + 1.0))
    values = np.empty(len(out), np.float32)
    tables = log_count, counters, lexicon, scratch
    for query in range(len(starts) - 1):
        first, stop = starts[query], starts[query + 1]
        if first == stop:
            continue
        size = questions[1][stop] - questions[1][first]
        count, distinct, word_mask, gram_mask = _read_query(queries, query, size, tables)
        known = distinct
        for row in range(first, stop):
            state = row, count, distinct, known, word_mask, gram_mask
            known = _write_candidate(questions, state, facts[1], tables, weights, out[row])
        _write_comparisons(out[first:stop], values)


@compile_loop()
def _read_query(queries, query, size, tables):  # type: ignore[no-untyped-def]
    """Read a query; return its words, its distinct words, and the masks of both hash tables.

    size: the bytes of all candidates.
    """
    log_count, counters, lexicon, scratch = tables
    buffers, _, words, slots, similar, _, query_ids, _, _, _, _, _ = scratch
    entries, vectors, scales = lexicon
    data, offsets = queries
    count, length = read_words(data, offsets[query], offsets[query + 1], buffers)
    mask = 64
    while mask < size + length and mask < len(slots):
        mask *= 2
    slots[:mask] = -1
    mask, distinct = mask - 1, 0
    for w in range(count):
        h = buffers[1][w]
        word = find_word(h, distinct, mask, words, slots, entries, counters[0], log_count)
        distinct = max(distinct, word + 1)
        words[word].count += 1
        query_ids[w] = word
    for word in range(distinct):
        compare_word(word, distinct, vectors, scales, words, similar)
    return count, distinct, mask, read_grams(count, length, tables)


@compile_loop(forceinline=True)
def _write_candidate(questions, state, mean_length, tables, weights, out):  # type: ignore[no-untyped-def]
    """Write a row of features; return the number of distinct words of the list so far."""
    row, query_count, distinct, known, word_mask, gram_mask = state
    log_count, counters, lexicon, scratch = tables
    buffers, _, words, slots, similar, ids, query_ids, found, run, unmatched, rows, _ = scratch
    entries, vectors, scales = lexicon
    hashes, of_words = buffers[1], counters[0]
    data, offsets = questions
    count, length = read_words(data, offsets[row], offsets[row + 1], buffers)
    for i in range(distinct):
        found[i] = 0
    other = np.int64(0)
    for w in range(count):
        at = find_word(hashes[w], known, word_mask, words, slots, entries, of_words, log_count)
        if at == known:
            compare_word(at, distinct, vectors, scales, words, similar)
            known += 1
        word = words[at]
        # Without a branch, since the processor would often mispredict it.
        unmatched[other] = word.key
        other += np.int64((word.candidate != row) & (word.count == 0) & (other < UNMATCHED))
        word.in_candidate = word.in_candidate + 1 if word.candidate == row else 1
        word.candidate = row
        ids[w] = at
        for i in range(distinct):
            found[i] = max(found[i], similar[at, i])
    out[_LENGTH], out[_LENGTH + 1] = query_count, count
    _write_question_words(count, words, ids, out)
    _write_query_words(row, count, distinct, mean_length, words, found, out)
    _write_grams(row, count, length, gram_mask, tables, out)
    _write_order(count, query_count, ids, query_ids, run, out)
    _write_weights(row, other, distinct, words, unmatched, rows, weights, out)
    return known


@compile_loop(forceinline=True)
def _write_question_words(count, words, ids, out):  # type: ignore[no-untyped-def]
    """Write features of the candidate's words; `_write_query_words` completes three columns."""
    total = shared = norm = heaviest = miss = far = missing = np.float32(0)
    numbers = negations = question_words = far_words = 0
    for w in range(count):
        word = words[ids[w]]
        idf, flags, best = word.idf, word.flags, word.best
        total += idf
        norm += idf * idf
        miss = max(miss, idf * (1 - best))
        missing += idf * (1 - best)
        negations += flags & NEGATION != 0
        if best < _NEAR:
            far, far_words = max(far, idf), far_words + 1
        if word.count:
            shared += idf
        else:
            heaviest = max(heaviest, idf)
            numbers += flags & NUMBER != 0
            question_words += flags & QUESTION_WORD != 0
    out[_OVERLAP + 1], out[_UNMATCHED + 1] = ratio(shared, total), heaviest
    out[_MATCH + 1] = ratio(total - missing, total)
    out[_MISS + 1], out[_FAR + 1], out[_MISSING + 1] = miss, far, missing
    out[_IDF + 1], out[_FAR_WORDS + 1], out[_NUMBERS + 1] = total, far_words, numbers
    out[_NEGATIONS], out[_QUESTION_WORDS], out[_COSINE] = negations, question_words, norm


@compile_loop(forceinline=True)
def _write_query_words(row, count, distinct, mean_length, words, found, out):  # type: ignore[no-untyped-def]
    """Write features of the query's distinct words, after `_write_question_words`."""
    total = shared = norm = dot = bm25 = heaviest = miss = far = missing = np.float32(0)
    numbers = negations = question_words = far_words = 0
    length = np.float32(_K1 * (1 - _B + _B * count / mean_length))
    for i in range(distinct):
        word = words[i]
        idf, flags, best, here = word.idf, word.flags, found[i], word.count
        total += idf
        norm += here * idf * idf
        miss = max(miss, idf * (1 - best))
        missing += idf * (1 - best)
        negations += here * (flags & NEGATION != 0)
        if best < _NEAR:
            far, far_words = max(far, idf), far_words + 1
        if word.candidate == row:
            used = word.in_candidate
            shared += idf
            dot += min(here, used) * idf * idf
            bm25 += idf * np.float32(_K1 + 1) * used / (used + length)
        else:
            heaviest = max(heaviest, idf)
            numbers += flags & NUMBER != 0
            question_words += flags & QUESTION_WORD != 0
    out[_BM25], out[_OVERLAP], out[_UNMATCHED] = bm25, ratio(shared, total), heaviest
    out[_MATCH] = ratio(total - missing, total)
    out[_MISS], out[_FAR], out[_MISSING] = miss, far, missing
    out[_IDF], out[_FAR_WORDS], out[_NUMBERS] = total, far_words, numbers
    out[_NEGATIONS] = abs(negations - out[_NEGATIONS])
    out[_QUESTION_WORDS] += question_words
    out[_COSINE] = ratio(dot, math.sqrt(norm * out[_COSINE]))


@compile_loop(forceinline=True)
def _write_grams(row, count, length, mask, tables, out):  # type: ignore[no-untyped-def]
    """Write the cosines of word pairs and of character n-grams."""
    log_count, counters, _, scratch = tables
    (text, words), grams, norms = scratch[0], scratch[1], scratch[-1]
    _, of_pairs, of_threes, of_fours = counters
    dot = norm = np.float32(0)
    for w in range(1, count):
        h = hash_pair(words[w - 1], words[w])
        weight, shared = match_gram(h, row, mask, grams, of_pairs, PAIR_BITS, log_count)
        dot, norm = dot + shared, norm + weight
    out[_COSINE + 1] = ratio(dot, math.sqrt(norm * norms[0]))
    dot3 = norm3 = dot4 = norm4 = np.float32(0)
    gram = _ZERO
    for at in range(length):
        gram = next_gram(gram, text[at])
        if at >= 2:
            h = hash_three(gram)
            weight, shared = match_gram(h, row, mask, grams, of_threes, THREE_BITS, log_count)
            dot3, norm3 = dot3 + shared, norm3 + weight
        if at >= 3:
            h = hash_four(gram)
            weight, shared = match_gram(h, row, mask, grams, of_fours, FOUR_BITS, log_count)
            dot4, norm4 = dot4 + shared, norm4 + weight
    out[_COSINE + 2] = ratio(dot3, math.sqrt(norm3 * norms[1]))
    out[_COSINE + 3] = ratio(dot4, math.sqrt(norm4 * norms[2]))


@compile_loop(forceinline=True)
def _write_order(count, query_count, ids, others, run, out):  # type: ignore[no-untyped-def]
    """Write features of the order of words."""
    both = count > 0 and query_count > 0
    out[_FIRST_WORD] = both and ids[0] == others[0]
    out[_FIRST_WORD + 1] = both and ids[count - 1] == others[query_count - 1]
    longer = max(count, query_count, 1)
    longest, order = common_words(count, query_count, ids, others, run)
    out[_FIRST_WORD + 2], out[_FIRST_WORD + 3] = longest / longer, order / longer


@compile_loop(forceinline=True)
def _write_weights(row, other, distinct, words, unmatched, rows, weights, out):  # type: ignore[no-untyped-def]
    """Write the sum of the learned weights, after the `other` words that only the candidate has."""
    count = other
    for i in range(distinct):
        unmatched[count] = words[i].key
        count += np.int64((words[i].candidate != row) & (count < other + UNMATCHED))
    total = np.float32(0)
    for i in range(write_rows(unmatched, other, count - other, rows)):
        total += weights[rows[i]]
    out[_WEIGHTS] = total


@compile_loop()
def _write_comparisons(out, values):  # type: ignore[no-untyped-def]
    """Write gaps and ranks of a list, from its other columns."""
    n = len(out)
    for i in range(n):
        values[i] = -out[i, _DISTANCE]
    write_gaps_and_ranks(values, out, _DISTANCE + 1, _DISTANCE + 3, _DISTANCE + 2)
    for i in range(n):
        values[i] = out[i, _BM25]
    write_gaps_and_ranks(values, out, _BM25 + 1, _BM25 + 2, -1)
    for i in range(n):
        values[i] = out[i, _COSINE + 3]
    write_gaps_and_ranks(values, out, _FOURS_GAP, _FOURS_GAP + 1, _FOURS_NEXT)
    for i in range(n):
        values[i] = out[i, _COSINE + 2]
    write_gaps_and_ranks(values, out, _THREES_GAP, _THREES_GAP + 1, -1)
    for i in range(n):
        values[i] = out[i, _MATCH] + out[i, _MATCH + 1]
    write_gaps_and_ranks(values, out, _MATCH_GAP, _MATCH_RANK, _MATCH_RANK + 1)
    for i in range(n):
        values[i] = -out[i, _MISSING] - out[i, _MISSING + 1]
    write_gaps_and_ranks(values, out, _MISSING_GAP, _MISSING_GAP + 1, -1)
    for i in range(n):
        values[i] = -max(out[i, _MISS], out[i, _MISS + 1])
    write_gaps_and_ranks(values, out, _MISS_GAP, _MISS_GAP + 1, -1)
    best = out[0, _WEIGHTS]
    for i in range(n):
        best = max(best, out[i, _WEIGHTS])
    for i in range(n):
        out[i, _WEIGHTS + 1] = best - out[i, _WEIGHTS]
