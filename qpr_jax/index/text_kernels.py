"""Hashes of the words and n-grams of texts, in compiled loops over the bytes of the texts.

Nothing is stored per question: its words and n-grams are read from its text each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.loops import compile_loop
from qpr_jax.text.tokenizer import tokenize

MAX_BYTES = 1024  # the rest of a text is ignored, so that the time for a text is bounded
MAX_WORDS = 64  # likewise
# log2 of the number of counters of words, word pairs, character 3-grams and 4-grams. They bound the
# memory for any number of questions; n-grams whose hashes collide share a counter.
WORD_BITS, PAIR_BITS, THREE_BITS, FOUR_BITS = 22, 21, 17, 19
_MIX = np.uint64(0x9E3779B97F4A7C15)  # a product with it spreads the bits upwards
_MIX_LEFT = np.uint64(0xD6E8FEB86659FD93)  # for the left word of a pair
_FOUR = np.uint64(1 << 40)  # a bit that 3-grams do not have
_FNV, _FNV_START = np.uint64(0x100000001B3), np.uint64(0xCBF29CE484222325)
_SPACE, _ZERO, _ONE = np.uint8(32), np.uint64(0), np.uint64(1)
_SEEN = 1 << 13  # more than the n-grams of a text


class Counters(NamedTuple):
    """Number of documents with each hash, uint32 [2 ** bits] each."""

    words: np.ndarray
    pairs: np.ndarray
    threes: np.ndarray
    fours: np.ndarray


# The output of `read_words`: the words of a text with a space before and after each, uint8
# [MAX_BYTES + 2], and their hashes, uint64 [MAX_WORDS]. Compiled loops take plain tuples only: the
# cache of a loop names the classes of its arguments, and cannot be loaded once one is renamed.
Buffers = tuple[np.ndarray, np.ndarray]


def make_buffers() -> Buffers:
    """Allocate the buffers of a thread."""
    return np.empty(MAX_BYTES + 2, np.uint8), np.empty(MAX_WORDS, np.uint64)


def empty_counters() -> Counters:
    """Make counters that are 0; memory pages that stay 0 are not allocated."""
    bits = (WORD_BITS, PAIR_BITS, THREE_BITS, FOUR_BITS)
    return Counters(*(np.zeros(1 << b, np.uint32) for b in bits))


def as_bytes(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate texts: their bytes, uint8, and offsets, int64 [n + 1], of each text.

    The loops convert ASCII to lower case; a text with other characters becomes the words of
    `tokenize`, joined by spaces.
    """
    joined = "".join(texts)
    if joined.isascii():
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        data = joined.encode()
    else:
        parts = [
            (t if t.isascii() else " ".join(tokenize(t[:MAX_BYTES]))).encode("utf-8", "replace")
            for t in texts
        ]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        data = b"".join(parts)
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return np.frombuffer(data, np.uint8), offsets


def word_hashes(words: Sequence[str]) -> np.ndarray:
    """Hash each word, uint64 [n]; 0 for a text that is not exactly one word."""
    data, offsets = as_bytes(words)
    hashes = np.zeros(len(words), np.uint64)
    _hash_words(data, offsets, make_buffers(), hashes)
    return hashes


@compile_loop()
def read_words(data, start, stop, buffers):  # type: ignore[no-untyped-def]
    """Read the words of data[start:stop] into `buffers`; return the numbers of words and bytes.

    A word is a run of ASCII letters, digits, "_" and bytes beyond ASCII. The lowest bit of its hash
    is 1 if it has a digit.
    """
    text, words = buffers
    text[0] = _SPACE
    size, count, h, digit = 1, 0, _FNV_START, _ZERO
    for at in range(start, min(stop, start + MAX_BYTES)):
        c = data[at]
        if 65 <= c <= 90:
            c = np.uint8(c + 32)
        if (97 <= c <= 122) or c >= 128 or (48 <= c <= 57) or c == 95:
            text[size] = c
            size += 1
            h = (h ^ np.uint64(c)) * _FNV
            if 48 <= c <= 57:
                digit = _ONE
        elif text[size - 1] != _SPACE:
            words[count] = _finish_hash(h, digit)
            count, h, digit = count + 1, _FNV_START, _ZERO
            text[size] = _SPACE
            size += 1
            if count == MAX_WORDS:
                break
    if text[size - 1] != _SPACE:
        words[count] = _finish_hash(h, digit)
        count += 1
        text[size] = _SPACE
        size += 1
    return count, size


@compile_loop()
def _finish_hash(h, digit):  # type: ignore[no-untyped-def]
    """Mix the bits of a hash, and set the lowest to `digit`; the result is never 0."""
    h ^= h >> np.uint64(32)
    h *= _MIX
    h ^= h >> np.uint64(29)
    return ((h | np.uint64(2)) & ~_ONE) | digit


@compile_loop()
def hash_pair(left, right):  # type: ignore[no-untyped-def]
    """Hash two words in this order."""
    return (left * _MIX_LEFT ^ (right >> np.uint64(7))) * _MIX


@compile_loop()
def bucket(h, bits):  # type: ignore[no-untyped-def]
    """Return the index of the counter of a hash, among 2 ** bits counters."""
    return np.int64(h >> np.uint64(64 - bits))


@compile_loop()
def next_gram(gram, c):  # type: ignore[no-untyped-def]
    """Append a byte to the last four bytes of a text, of which it keeps four."""
    return ((gram << np.uint64(8)) | np.uint64(c)) & np.uint64(0xFFFFFFFF)


@compile_loop()
def hash_three(gram):  # type: ignore[no-untyped-def]
    """Hash the last three bytes of `next_gram`."""
    return (gram & np.uint64(0xFFFFFF)) * _MIX


@compile_loop()
def hash_four(gram):  # type: ignore[no-untyped-def]
    """Hash the last four bytes of `next_gram`."""
    return (gram | _FOUR) * _MIX


@compile_loop()
def _hash_words(data, offsets, buffers, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        count, _ = read_words(data, offsets[i], offsets[i + 1], buffers)
        out[i] = buffers[1][0] if count == 1 else _ZERO


@compile_loop()
def count_texts(data, offsets, counters, buffers, step):  # type: ignore[no-untyped-def]
    """Add `step`, 1 or -1, to the counter of each distinct word and n-gram of each text.

    Returns:
      The number of words of all texts.
    """
    text, words = buffers
    of_words, of_pairs, of_threes, of_fours = counters
    total = 0
    seen = np.zeros(_SEEN, np.uint64)  # a hash set of the counters that the text has changed
    for i in range(len(offsets) - 1):
        count, size = read_words(data, offsets[i], offsets[i + 1], buffers)
        total += count
        slots = 256
        while slots < 4 * size + 256:
            slots *= 2
        mark = np.uint64(i + 1) << np.uint64(24)
        for w in range(count):
            h = words[w]
            _count(of_words, bucket(h, WORD_BITS), _ZERO, seen, slots, mark, step)
            if w:
                h = hash_pair(words[w - 1], h)
                _count(of_pairs, bucket(h, PAIR_BITS), _ONE, seen, slots, mark, step)
        gram = _ZERO
        for at in range(size if count else 0):
            gram = next_gram(gram, text[at])
            if at >= 2:
                h = hash_three(gram)
                row = bucket(h, THREE_BITS)
                _count(of_threes, row, np.uint64(2), seen, slots, mark, step)
            if at >= 3:
                row = bucket(hash_four(gram), FOUR_BITS)
                _count(of_fours, row, np.uint64(3), seen, slots, mark, step)
    return total


@compile_loop()
def _count(table, row, kind, seen, slots, mark, step):  # type: ignore[no-untyped-def]
    """Add `step` to a counter, unless `seen` says that this text has changed it already."""
    key = mark | (kind << np.uint64(22)) | np.uint64(row)
    at = np.int64((key * _MIX) >> np.uint64(40)) & (slots - 1)
    while seen[at] >> np.uint64(24) == mark >> np.uint64(24):
        if seen[at] == key:
            return
        at = (at + 1) & (slots - 1)
    seen[at] = key
    table[row] += np.uint32(step)
