"""Terms of texts as hashes, and their document frequencies.

The terms of a text are its words, pairs of words, and character 3- and 4-grams. They are read from
the bytes of a text each time; nothing is stored for a question.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpr_jax.running import compile_loop
from qpr_jax.text.tokenizer import has_sign, tokenize

MAX_BYTES, MAX_WORDS = 1024, 64  # the rest of a text is ignored, so its time is bounded
# log2 of the number of document frequencies of each kind of terms: words, pairs, 3- and 4-grams.
# Terms with equal buckets share one.
_BITS = np.array([20, 18, 16, 18])
_SHIFTS = (64 - _BITS).astype(np.uint64)
_STARTS = np.concatenate([[0], np.cumsum(1 << _BITS)])
BUCKETS = int(_STARTS[-1])
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

_STEPS = 8  # codes of an octave of frequencies
_LEAST_IDF = np.float32(0.01)
_CHUNK = 2000  # texts counted at a time
TENSORS = ("frequencies.codes", "frequencies.documents", "frequencies.mean_length")


class Terms(NamedTuple):
    """The terms of n texts."""

    # Words are in their order, others sorted. The lowest bit of a word's is 1 if it has a digit.
    hashes: np.ndarray  # uint64 [t]
    buckets: np.ndarray  # int32 [t], the place of each term in `Frequencies.codes`
    bounds: np.ndarray  # int64 [n, 5], where each of the four kinds of a text begins, and the end


def read_terms(texts: Sequence[str]) -> Terms:
    """Read the terms of texts.

    A word is a run of letters, digits and "_", or a sign as of `tokenize`. Character n-grams are
    those of the words with a space before and after.
    """
    data, offsets = _as_bytes(texts)
    most = 3 * int(np.minimum(np.diff(offsets), MAX_BYTES).sum()) + 4 * len(texts)
    hashes, buckets = np.empty(most, np.uint64), np.empty(most, np.int32)
    bounds = np.empty((len(texts), 5), np.int64)
    text = np.empty(MAX_BYTES + 2, np.uint8)
    end = _read(data, offsets, text, hashes, buckets, bounds)
    return Terms(hashes[:end], buckets[:end], bounds)


def _as_bytes(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate texts: their bytes, uint8, and offsets, int64 [n + 1], of each text.

    `_read` converts ASCII to lower case; a text with other characters or signs becomes the words
    and signs of `tokenize`, joined by spaces.
    """
    parts = []
    for text in texts:
        plain = text.isascii() and not has_sign(text)
        words = text if plain else " ".join(tokenize(text[:MAX_BYTES], signs=True))
        parts.append(words.encode("utf-8", "replace"))
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return np.frombuffer(b"".join(parts), np.uint8), offsets


@compile_loop()
def _read(data, offsets, text, hashes, buckets, bounds):  # type: ignore[no-untyped-def]
    """Write the terms of each text; `text`, uint8 [MAX_BYTES + 2], is working memory."""
    end = 0
    for i in range(len(bounds)):
        start, size, h, digit = end, 1, _FNV_START, _ZERO
        stop = min(offsets[i + 1], offsets[i] + MAX_BYTES)
        text[0] = _SPACE
        for at in range(offsets[i], stop + 1):
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
                text[size] = _SPACE
                size += 1
                h = (h ^ (h >> np.uint64(32))) * _MIX
                h ^= h >> np.uint64(29)
                hashes[end] = ((h | np.uint64(2)) & ~_ONE) | digit  # never 0
                end, h, digit = end + 1, _FNV_START, _ZERO
                if end == start + MAX_WORDS:
                    break
        words = end
        for at in range(start + 1, words):
            hashes[end] = (hashes[at - 1] * _MIX_LEFT ^ (hashes[at] >> np.uint64(7))) * _MIX
            end += 1
        threes, gram = end, _ZERO
        fours = threes + max(0, size - 2)
        end = fours + max(0, size - 3)
        for at in range(size):
            gram = ((gram << np.uint64(8)) | np.uint64(text[at])) & np.uint64(0xFFFFFFFF)
            if at >= 2:
                hashes[threes + at - 2] = (gram & np.uint64(0xFFFFFF)) * _MIX
            if at >= 3:
                hashes[fours + at - 3] = (gram | _FOUR) * _MIX
        bounds[i, 0], bounds[i, 1], bounds[i, 2] = start, words, threes
        bounds[i, 3], bounds[i, 4] = fours, end
        for kind in range(4):
            if kind:
                _sort(hashes, bounds[i, kind], bounds[i, kind + 1])
            for at in range(bounds[i, kind], bounds[i, kind + 1]):
                buckets[at] = _STARTS[kind] + np.int64(hashes[at] >> _SHIFTS[kind])
    return end


@compile_loop()
def _sort(values, start, stop):  # type: ignore[no-untyped-def]
    """Sort values[start:stop] in place, by Shell's method."""
    gap = (stop - start) // 2
    while gap > 0:
        for i in range(start + gap, stop):
            value, at = values[i], i
            while at >= start + gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap = 1 if gap == 2 else int(gap * 5 / 11)


@compile_loop()
def write_cosines(pairs, terms, squares, norms, out):  # type: ignore[no-untyped-def]
    """Write the cosines of pairs of texts: of word pairs, 3- and 4-grams.

    Args:
      pairs: int64 [2, m], texts of `terms`.
      terms: those of all texts.
      squares: float32 [t], the squared idf of each term.
      norms: memory, float64 [n, 4].
      out: float32 [m, f]; the columns 1 to 3 get the cosines.
    """
    hashes, bounds = terms.hashes, terms.bounds
    for text in range(len(bounds)):
        for kind in range(1, 4):
            norms[text, kind] = 0
            for term in range(bounds[text, kind], bounds[text, kind + 1]):
                norms[text, kind] += squares[term]
    for m in range(pairs.shape[1]):
        one, other = pairs[0, m], pairs[1, m]
        for kind in range(1, 4):
            dot, i, j = np.float64(0), bounds[one, kind], bounds[other, kind]
            while i < bounds[one, kind + 1] and j < bounds[other, kind + 1]:
                left, right = hashes[i], hashes[j]
                if left == right:
                    dot += squares[i]
                i += left <= right
                j += right <= left
            norm = math.sqrt(norms[one, kind] * norms[other, kind])
            out[m, kind] = np.float32(dot / norm) if norm > 0 else np.float32(0)


class Lexicon(NamedTuple):
    """Words with an embedding or a flag."""

    hashes: np.ndarray  # uint64 [n], of the words, ascending
    flags: np.ndarray  # uint8 [n], NEGATION and QUESTION_WORD
    rows: np.ndarray  # int32 [n], rows in `vectors`, -1 for none
    vectors: np.ndarray  # int8 [m, e], embeddings of any length
    scales: np.ndarray  # float32 [m], the reciprocals of their lengths

    def find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the flags and the rows of words, by their hashes; 0 and -1 for others."""
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        there = self.hashes[places] == hashes
        flags = np.where(there, self.flags[places], 0).astype(np.uint8)
        rows = np.where(there, self.rows[places], -1).astype(np.int32)
        return flags | NUMBER * (hashes & _ONE).astype(np.uint8), rows


def make_lexicon(words: Sequence[str], embeddings: np.ndarray) -> Lexicon:
    """Make the lexicon of words with embeddings, float32 [m, e], and of words with a flag.

    Embeddings are rounded to 8-bit integers: their products are the same on any machine.
    """
    largest = np.abs(embeddings).max(axis=1, initial=0)
    vectors = np.rint(embeddings * (127 / np.maximum(largest, 1e-30))[:, None]).astype(np.int8)
    squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.int64)
    scales = (1 / np.sqrt(np.maximum(squares, 1))).astype(np.float32)
    flagged = {NEGATION: _NEGATIONS.split(), QUESTION_WORD: _QUESTION_WORDS.split()}
    of_words = _word_hashes(words)
    of_flagged = {flag: _word_hashes(some) for flag, some in flagged.items()}
    hashes = np.unique(np.concatenate([of_words[of_words > 0], *of_flagged.values()]))
    rows, flags = np.full(len(hashes), -1, np.int32), np.zeros(len(hashes), np.uint8)
    single = np.flatnonzero(of_words)
    rows[np.searchsorted(hashes, of_words[single])] = single
    for flag, found in of_flagged.items():
        flags[np.searchsorted(hashes, found)] |= flag
    return Lexicon(hashes, flags, rows, vectors, scales)


def _word_hashes(words: Sequence[str]) -> np.ndarray:
    """Hash each word, uint64 [n]; 0 for a text that is not exactly one word."""
    terms, hashes = read_terms(words), np.zeros(len(words), np.uint64)
    single = terms.bounds[:, 1] == terms.bounds[:, 0] + 1
    hashes[single] = terms.hashes[terms.bounds[single, 0]]
    return hashes


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Document frequencies of terms, frozen when a model of pairs is trained.

    codes: uint8 [sum of 2 ** _BITS], round(_STEPS * log2(1 + df)) of each bucket, where df of the
      documents have a term of the bucket; kind after kind.
    """

    codes: np.ndarray
    documents: int  # their number
    mean_length: float  # the mean number of words in a document, at least 1

    @classmethod
    def count(cls, texts: Iterable[str]) -> Frequencies:
        """Count the terms of texts, which are not kept."""
        counts, rest = np.zeros(BUCKETS, np.uint32), iter(texts)
        documents = words = 0
        while chunk := list(itertools.islice(rest, _CHUNK)):
            terms = read_terms(chunk)
            owners = np.repeat(np.arange(len(chunk)), terms.bounds[:, 4] - terms.bounds[:, 0])
            distinct = np.unique(owners * len(counts) + terms.buckets)
            counts += np.bincount(distinct % len(counts), minlength=len(counts)).astype(np.uint32)
            words += int((terms.bounds[:, 1] - terms.bounds[:, 0]).sum())
            documents += len(chunk)
        codes = np.rint(_STEPS * np.log2(1.0 + counts)).astype(np.uint8)
        return cls(codes, documents, max(1.0, words / max(1, documents)))

    def idfs(self) -> np.ndarray:
        """Return log((N + 1) / (df + 1)), at least 0.01, of each code: float32 [256]."""
        logs = np.arange(256) * np.log(2) / _STEPS
        return np.maximum(np.log(self.documents + 1) - logs, _LEAST_IDF).astype(np.float32)

    def weights(self, words: Sequence[str]) -> np.ndarray:
        """Return the idf of words, float32 [n]."""
        buckets = (_word_hashes(words) >> _SHIFTS[0]).astype(np.int64)
        return self.idfs()[self.codes[buckets]]

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the arrays to store, by name."""
        values = (self.codes, np.array([self.documents]), np.array([self.mean_length]))
        return dict(zip(TENSORS, values, strict=True))
