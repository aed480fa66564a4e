"""Words and n-grams of texts as hashes.

A text is a list of terms: its words, pairs of words, and character 3- and 4-grams. Terms are read
from the bytes of a text each time; nothing is stored for a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.machine import compile_loop
from qpr_jax.text.tokenizer import tokenize

MAX_BYTES, MAX_WORDS = 1024, 64  # the rest of a text is ignored, so its time is bounded
MAX_TERMS = 2 * (MAX_BYTES + MAX_WORDS)
WORDS, PAIRS, THREES, FOURS = range(4)  # kinds of terms
_MIX = np.uint64(0x9E3779B97F4A7C15)  # a product with it spreads the bits upwards
_MIX_LEFT = np.uint64(0xD6E8FEB86659FD93)  # for the left word of a pair
_FOUR = np.uint64(1 << 40)  # a bit that 3-grams do not have
_FNV, _FNV_START = np.uint64(0x100000001B3), np.uint64(0xCBF29CE484222325)
_SPACE, _ZERO, _ONE = np.uint8(32), np.uint64(0), np.uint64(1)

NUMBER, NEGATION, QUESTION_WORD = 1, 2, 4  # flags of words
# A word of one letter is what an apostrophe cuts off: "don't" has the words "don" and "t".
_NEGATIONS = (
    "not no never none nothing nobody nowhere neither nor without cannot t cant dont doesnt didnt "
    "isnt arent wasnt wont wouldnt shouldnt couldnt hasnt havent"
)
_QUESTION_WORDS = (
    "what which who whom whose when where why how is are was were do does did can could should "
    "will would"
)


class Lexicon(NamedTuple):
    """Words with an embedding or a flag.

    Attributes:
      hashes: uint64 [n + 1], of the words, ascending; the last one is the greatest number.
      starts: int32 [2 ** 16], the first word whose upper 16 bits are these or greater.
      flags: uint8 [n], NEGATION and QUESTION_WORD; NUMBER is a bit of the hash.
      rows: int32 [n], rows in `vectors`, -1 for none.
      vectors: int8 [m, e], embeddings of any length.
      scales: float32 [m], the reciprocals of their lengths.
    """

    hashes: np.ndarray
    starts: np.ndarray
    flags: np.ndarray
    rows: np.ndarray
    vectors: np.ndarray
    scales: np.ndarray


def make_lexicon(words: Sequence[str], embeddings: np.ndarray) -> Lexicon:
    """Make the lexicon of words with embeddings, float32 [m, e], and of words with a flag.

    Embeddings are rounded to 8-bit integers: their products are the same on any machine.
    """
    largest = np.abs(embeddings).max(axis=1, initial=0)
    vectors = np.rint(embeddings * (127 / np.maximum(largest, 1e-30))[:, None]).astype(np.int8)
    squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.int64)
    scales = (1 / np.sqrt(np.maximum(squares, 1))).astype(np.float32)
    flagged = {NEGATION: _NEGATIONS.split(), QUESTION_WORD: _QUESTION_WORDS.split()}
    of_words = word_hashes(words)
    of_flagged = {flag: word_hashes(known) for flag, known in flagged.items()}
    hashes = np.unique(np.concatenate([of_words[of_words > 0], *of_flagged.values()]))
    rows, flags = np.full(len(hashes), -1, np.int32), np.zeros(len(hashes), np.uint8)
    known = np.flatnonzero(of_words)
    rows[np.searchsorted(hashes, of_words[known])] = known
    for flag, found in of_flagged.items():
        flags[np.searchsorted(hashes, found)] |= flag
    starts = np.searchsorted(hashes, np.arange(1 << 16, dtype=np.uint64) << np.uint64(48))
    hashes = np.append(hashes, np.uint64(np.iinfo(np.uint64).max))
    return Lexicon(hashes, starts.astype(np.int32), flags, rows, vectors, scales)


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
        parts = []
        for text in texts:
            words = text if text.isascii() else " ".join(tokenize(text[:MAX_BYTES]))
            parts.append(words.encode("utf-8", "replace"))
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        data = b"".join(parts)
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return np.frombuffer(data, np.uint8), offsets


def word_hashes(words: Sequence[str]) -> np.ndarray:
    """Hash each word, uint64 [n]; 0 for a text that is not exactly one word."""
    hashes = np.zeros(len(words), np.uint64)
    _hash_words(*as_bytes(words), hashes)
    return hashes


@compile_loop()
def read_terms(data, start, stop, text, terms):  # type: ignore[no-untyped-def]
    """Read the hashes of the terms of data[start:stop] into `terms`, uint64 [MAX_TERMS].

    A word is a run of ASCII letters, digits, "_" and bytes beyond ASCII. The lowest bit of its hash
    is 1 if it has a digit. Character n-grams are those of the words with a space before and after.

    Args:
      text: uint8 [MAX_BYTES + 2], working memory.

    Returns:
      The ends of the four kinds in `terms`.
    """
    text[0] = _SPACE
    size, words, h, digit = 1, 0, _FNV_START, _ZERO
    stop = min(stop, start + MAX_BYTES)
    for at in range(start, stop + 1):
        c = data[at] if at < stop else _SPACE
        if 65 <= c <= 90:
            c = np.uint8(c + 32)
        if (97 <= c <= 122) or c >= 128 or (48 <= c <= 57) or c == 95:
            text[size] = c
            size += 1
            h = (h ^ np.uint64(c)) * _FNV
            if 48 <= c <= 57:
                digit = _ONE
        elif text[size - 1] != _SPACE:
            terms[words] = _finish_hash(h, digit)
            words, h, digit = words + 1, _FNV_START, _ZERO
            text[size] = _SPACE
            size += 1
            if words == MAX_WORDS:
                break
    pairs = words
    for at in range(1, words):
        terms[pairs] = (terms[at - 1] * _MIX_LEFT ^ (terms[at] >> np.uint64(7))) * _MIX
        pairs += 1
    gram, threes = _ZERO, pairs
    fours = pairs + max(0, size - 2)
    fours_start = fours
    for at in range(size):
        gram = ((gram << np.uint64(8)) | np.uint64(text[at])) & np.uint64(0xFFFFFFFF)
        if at >= 2:
            terms[threes] = (gram & np.uint64(0xFFFFFF)) * _MIX
            threes += 1
        if at >= 3:
            terms[fours] = (gram | _FOUR) * _MIX
            fours += 1
    return words, pairs, fours_start, fours


@compile_loop()
def _finish_hash(h, digit):  # type: ignore[no-untyped-def]
    """Mix the bits of a hash, and set the lowest to `digit`; the result is never 0."""
    h ^= h >> np.uint64(32)
    h *= _MIX
    h ^= h >> np.uint64(29)
    return ((h | np.uint64(2)) & ~_ONE) | digit


@compile_loop()
def _hash_words(data, offsets, out):  # type: ignore[no-untyped-def]
    text, terms = np.empty(MAX_BYTES + 2, np.uint8), np.empty(MAX_TERMS, np.uint64)
    for i in range(len(out)):
        ends = read_terms(data, offsets[i], offsets[i + 1], text, terms)
        out[i] = terms[0] if ends[0] == 1 else _ZERO
