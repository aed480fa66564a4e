"""The features of the words model of pairs: numbers of two texts, the same if they swap.

Some words say more or less than their idf about the meaning of a text that has them, where the
other one lacks them, and so does a pair of a word of each text ("buy" and "purchase", "can" and
"cannot"). Each has a weight, learned from pairs of training questions; words and pairs whose hashes
collide share one.

The callers of compiled loops make all arrays: compiling an allocation takes a tenth of a second.
Sums are of float64, so that they are the same float32 if the two texts swap.
"""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.encoders.encoder import Encoder
from qpr_jax.pair_model.terms import (
    MAX_WORDS,
    NEGATION,
    NUMBER,
    QUESTION_WORD,
    Frequencies,
    Terms,
    make_lexicon,
    read_terms,
    write_cosines,
)
from qpr_jax.running import compile_loop, cpu_count

_COMMON = (
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
)
_SIDES = (  # of one text beside the other
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
FEATURES = (
    *_COMMON,
    *(f"{name}_sum" for name in _SIDES),  # of both texts
    *(f"{name}_difference" for name in _SIDES),
)
WEIGHTS, SIDES, SIDE = len(_COMMON) - 1, len(_COMMON), len(_SIDES)  # columns, and their number
_NEGATIONS, _ORDER, _NUMBERS = 4, 6, _SIDES.index("numbers")
# The most words of each text that have weights: those that the other lacks, and those in pairs.
_UNMATCHED, _PAIRED = 6, 4
MOST = 2 * _UNMATCHED + _PAIRED**2  # weights of two texts
BITS = 18  # log2 of the number of weights
_SHIFT = np.uint64(64 - BITS)
_MIX = np.uint64(0x9FB21C651E98DF25)  # a product with it spreads the bits upwards
_NEAR = np.float32(0.5)  # the least match of a word that is not far
_CHUNK = 2000  # pairs that a thread takes at a time


def zero_weights() -> np.ndarray:
    """Make weights of words that are 0, float32 [2 ** BITS]."""
    return np.zeros(1 << BITS, np.float32)


class _Words(NamedTuple):
    """The words of n texts, in their order."""

    starts: np.ndarray  # int64 [n + 1], the first word of each text
    hashes: np.ndarray  # uint64 [w]
    times: np.ndarray  # int64 [w], how often the text has the word; 0 if it came before
    idfs: np.ndarray  # float32 [w]
    flags: np.ndarray  # uint8 [w], NUMBER, NEGATION and QUESTION_WORD
    rows: np.ndarray  # int32 [w], rows of embeddings, -1 for none


class FeatureExtractor:
    """Computes FEATURES of pairs of texts. Thread-safe."""

    def __init__(self, encoder: Encoder, frequencies: Frequencies, weights: np.ndarray) -> None:
        """Make the lexicon of the encoder's words, of learned weights float32 [2 ** BITS]."""
        self.weights = weights
        self._codes, self._idfs = frequencies.codes, frequencies.idfs()
        self._lexicon = make_lexicon(*encoder.word_embeddings())

    def compute(
        self, first: Sequence[str], second: Sequence[str], rows: np.ndarray | None = None
    ) -> np.ndarray:
        """Compute the features of pairs, float32 [m, len(FEATURES)]; each depends on its pair.

        Args:
          first, second: m texts each; one that is repeated is read once.
          rows: int32 [m, MOST] or None; gets the rows of the weights of each pair, -1 for none.
        """
        out = np.empty((len(first), len(FEATURES)), np.float32)
        if rows is None:
            rows = np.empty((len(first), MOST), np.int32)
        parts = [slice(start, start + _CHUNK) for start in range(0, len(first), _CHUNK)]

        def fill(part: slice) -> None:
            self._write(first[part], second[part], rows[part], out[part])

        if len(parts) > 1:
            # A pool for each call: threads that wait in a kept one would be missing after a fork.
            with concurrent.futures.ThreadPoolExecutor(cpu_count()) as pool:
                [*pool.map(fill, parts)]
        elif parts:
            fill(parts[0])
        return out

    def _write(
        self, first: Sequence[str], second: Sequence[str], rows: np.ndarray, out: np.ndarray
    ) -> None:
        """Write all features to `out`."""
        places = {text: i for i, text in enumerate(dict.fromkeys([*first, *second]))}
        pairs = np.array([[places[text] for text in side] for side in (first, second)])
        terms = read_terms([*places])
        idfs = self._idfs[self._codes[terms.buckets]]
        words = self._words(terms, idfs)
        memory = (
            np.empty((2, MAX_WORDS), np.float32),  # similarity to the nearest word of the other
            np.empty((2, MAX_WORDS), np.int64),  # how often the other text has the word
            np.empty((2, MAX_WORDS + 1), np.int64),  # lengths of common runs and subsequences
            np.empty((2, SIDE), np.float32),  # the features of each text
        )
        embeddings = self._lexicon.vectors, self._lexicon.scales
        _write_pairs(pairs, words, embeddings, self.weights, memory, rows, out)
        write_cosines(pairs, terms, idfs * idfs, np.empty((len(places), 4)), out)

    def _words(self, terms: Terms, idfs: np.ndarray) -> _Words:
        counts = terms.bounds[:, 1] - terms.bounds[:, 0]
        starts = np.append(0, np.cumsum(counts))
        places = np.repeat(terms.bounds[:, 0] - starts[:-1], counts) + np.arange(starts[-1])
        hashes, times = terms.hashes[places], np.zeros(starts[-1], np.int64)
        _write_times(starts, hashes, times)
        return _Words(starts, hashes, times, idfs[places], *self._lexicon.find(hashes))


@compile_loop()
def _write_times(starts, hashes, times):  # type: ignore[no-untyped-def]
    for text in range(len(starts) - 1):
        for i in range(starts[text], starts[text + 1]):
            at = starts[text]
            while hashes[at] != hashes[i]:
                at += 1
            times[at] += 1


@compile_loop()
def _write_pairs(pairs, words, embeddings, weights, memory, rows, out):  # type: ignore[no-untyped-def]
    """Write the features of words of each pair; `FeatureExtractor._write` says what memory is."""
    near, there, run, sides = memory
    for m in range(pairs.shape[1]):
        one, other, line = pairs[0, m], pairs[1, m], out[m]
        first, second = words.starts[one : one + 2], words.starts[other : other + 2]
        _compare(first, second, words, embeddings, near, there)
        _write_side(first, words, near[0], there[0], sides[0])
        _write_side(second, words, near[1], there[1], sides[1])
        sides[0, _NUMBERS] += _swapped_numbers(words.hashes, words.flags, first, second)
        sides[1, _NUMBERS] += _swapped_numbers(words.hashes, words.flags, second, first)
        for i in range(SIDE):
            line[SIDES + i] = sides[0, i] + sides[1, i]
            line[SIDES + SIDE + i] = abs(sides[0, i] - sides[1, i])
        _write_common(first, second, words, there, line)
        _write_weights(first, second, words, there, weights, rows[m], line)
        _write_order(first, second, words.hashes, run, line)


@compile_loop(inline="always")
def _compare(first, second, words, embeddings, near, there):  # type: ignore[no-untyped-def]
    """Write how often the other text has each distinct word, and the similarity of the nearest."""
    vectors, scales = embeddings
    for j in range(second[1] - second[0]):
        near[1, j], there[1, j] = 0, 0
    for i in range(first[0], first[1]):
        greatest, count, row = np.float32(0), 0, words.rows[i]
        for j in range(second[0], second[1]) if words.times[i] else range(0):
            value, another = np.float32(0), words.rows[j]
            if words.hashes[i] == words.hashes[j]:
                value = np.float32(1)
                count += words.times[j]
                there[1, j - second[0]] = words.times[i]
            elif row >= 0 and another >= 0 and words.times[j]:
                total = np.int32(0)
                for k in range(vectors.shape[1]):
                    total += np.int32(vectors[row, k]) * np.int32(vectors[another, k])
                value = np.float32(total) * (scales[row] * scales[another])
            greatest = max(greatest, value)
            near[1, j - second[0]] = max(near[1, j - second[0]], value)
        near[0, i - first[0]], there[0, i - first[0]] = greatest, count


@compile_loop()
def _write_side(text, words, near, there, out):  # type: ignore[no-untyped-def]
    """Write the features of the words of one text; near, there: those of `_compare`."""
    total = shared = missing = np.float64(0)
    unmatched = miss = far = np.float32(0)
    numbers = far_words = 0
    for i in range(text[0], text[1]):
        if words.times[i] == 0:
            continue
        idf, match = words.idfs[i], near[i - text[0]]
        total += idf
        miss = max(miss, idf * (1 - match))
        missing += idf * (1 - match)
        if match < _NEAR:
            far, far_words = max(far, idf), far_words + 1
        if there[i - text[0]] > 0:
            shared += idf
        else:
            unmatched = max(unmatched, idf)
            numbers += words.flags[i] & NUMBER != 0
    out[0], out[1], out[2] = _ratio(shared, total), unmatched, _ratio(total - missing, total)
    out[3], out[4], out[5], out[6] = miss, far, missing, numbers
    out[7], out[8], out[9] = far_words, total, text[1] - text[0]


@compile_loop()
def _write_common(first, second, words, there, out):  # type: ignore[no-untyped-def]
    """Write the cosine of words, negations and question words."""
    dot = norm = other_norm = np.float64(0)
    negations = question_words = 0
    for i in range(first[0], first[1]):
        count = there[0, i - first[0]]
        square = words.idfs[i] * words.idfs[i]
        dot += min(words.times[i], count) * square
        norm += words.times[i] * square
        negations += words.flags[i] & NEGATION != 0
        only = words.times[i] > 0 and count == 0
        question_words += only and words.flags[i] & QUESTION_WORD != 0
    for j in range(second[0], second[1]):
        other_norm += words.times[j] * (words.idfs[j] * words.idfs[j])
        negations -= words.flags[j] & NEGATION != 0
        only = words.times[j] > 0 and there[1, j - second[0]] == 0
        question_words += only and words.flags[j] & QUESTION_WORD != 0
    out[0] = _ratio(dot, math.sqrt(norm * other_norm))
    out[_NEGATIONS], out[_NEGATIONS + 1] = abs(negations), question_words


@compile_loop()
def _write_weights(first, second, words, there, weights, rows, out):  # type: ignore[no-untyped-def]
    """Write the rows of the weights of a pair, int32 [MOST], then -1; and the sum of the weights.

    They are of words that only one of the two texts has, then of pairs of such words.
    """
    hashes, count, end = words.hashes, 0, 0
    for side in range(2):
        text, count = (first, end) if side == 0 else (second, end)
        for i in range(text[0], text[1]):
            if words.times[i] and there[side, i - text[0]] == 0 and end < count + _UNMATCHED:
                rows[end] = i
                end += 1
    single = end
    for i in range(min(count, _PAIRED)):
        for j in range(count, min(single, count + _PAIRED)):
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
def _write_order(first, second, hashes, run, out):  # type: ignore[no-untyped-def]
    """Write the features of the order of words.

    They are whether the first word is the same, and the last one, and the lengths of the longest
    common run of words and of their longest common subsequence.
    """
    size = second[1] - second[0]
    longest, longer = 0, max(first[1] - first[0], size, 1)
    for j in range(size + 1):
        run[0, j], run[1, j] = 0, 0
    for i in range(first[0], first[1]):
        run_before, order_before, left = 0, 0, 0
        for j in range(1, size + 1):
            run_above, above = run[0, j], run[1, j]
            same = hashes[i] == hashes[second[0] + j - 1]
            length = run_before + 1 if same else 0
            left = order_before + 1 if same else max(above, left)
            run[0, j], run[1, j] = length, left
            longest = max(longest, length)
            run_before, order_before = run_above, above
    both = first[0] < first[1] and second[0] < second[1]
    out[_ORDER] = both and hashes[first[0]] == hashes[second[0]]
    out[_ORDER + 1] = both and hashes[first[1] - 1] == hashes[second[1] - 1]
    out[_ORDER + 2], out[_ORDER + 3] = longest / longer, run[1, size] / longer


@compile_loop()
def _swapped_numbers(hashes, flags, text, other):  # type: ignore[no-untyped-def]
    """Count pairs of numbers of a text that only the other text has the other way round.

    They follow each other, or have a word between them, the same in both texts, as in 03/04/2024
    and 04/03/2024. text, other: where the words of the texts begin and end.
    """
    swapped = 0
    for i in range(text[0] + 1, text[1]):
        for gap in range(1, min(2, i - text[0]) + 1):
            left, right = hashes[i - gap], hashes[i]
            if not flags[i - gap] & flags[i] & NUMBER:
                continue
            same, turned = False, False
            for j in range(other[0] + gap, other[1]):
                first, last = hashes[j - gap], hashes[j]
                same |= first == left and last == right
                between = gap == 1 or hashes[j - 1] == hashes[i - 1]
                turned |= first == right and last == left and between
            swapped += turned and not same
    return swapped


@compile_loop()
def _ratio(part, whole):  # type: ignore[no-untyped-def]
    """Return part / whole, or 0 if whole is 0."""
    return np.float32(part / whole) if whole > 0 else np.float32(0)
