"""Document frequencies of words and n-grams, which a re-ranker keeps from its training."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.machine import compile_loop
from qpr_jax.reranking.model_folder import REMEDY, check_array
from qpr_jax.reranking.words import (
    MAX_BYTES,
    MAX_TERMS,
    MAX_WORDS,
    WORDS,
    as_bytes,
    read_terms,
    word_hashes,
)

# log2 of the number of frequencies of each kind of terms. Terms with equal buckets share one.
_BITS = np.array([20, 18, 16, 18])
_SHIFTS = (64 - _BITS).astype(np.uint64)
_STARTS = np.concatenate([[0], np.cumsum(1 << _BITS)])
_STEPS = 8  # codes of an octave of frequencies
_LEAST_IDF = np.float32(0.01)
_CHUNK = 10_000  # texts counted at a time
_SEEN = 1 << 13  # more than the terms of a text
_MIX = np.uint64(0x9E3779B97F4A7C15)  # a product with it spreads the bits upwards
_TENSORS = ("frequencies.codes", "frequencies.documents", "frequencies.mean_length")


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Document frequencies of terms, frozen when a re-ranker is trained.

    Attributes:
      codes: uint8 [sum of 2 ** _BITS], round(_STEPS * log2(1 + df)) of each bucket, where df of the
        documents have a term of the bucket; kind after kind.
      documents: the number of documents.
      mean_length: the mean number of words in a document, at least 1.
    """

    codes: np.ndarray
    documents: int
    mean_length: float

    @classmethod
    def count(cls, texts: Iterable[str]) -> Frequencies:
        """Count the terms of texts, which are not kept."""
        counts, rest = np.zeros(_STARTS[-1], np.uint32), iter(texts)
        documents = words = 0
        while chunk := list(itertools.islice(rest, _CHUNK)):
            words += _count_terms(*as_bytes(chunk), counts)
            documents += len(chunk)
        codes = np.rint(_STEPS * np.log2(1.0 + counts)).astype(np.uint8)
        return cls(codes, documents, max(1.0, words / max(1, documents)))

    def idfs(self) -> np.ndarray:
        """Return log((N + 1) / (df + 1)), at least 0.01, of each code: float32 [256]."""
        logs = np.arange(256) * np.log(2) / _STEPS
        return np.maximum(np.log(self.documents + 1) - logs, _LEAST_IDF).astype(np.float32)

    def weights(self, words: Sequence[str]) -> np.ndarray:
        """Return the idf of words, float32 [n]."""
        buckets = word_hashes(words) >> _SHIFTS[WORDS]
        return self.idfs()[self.codes[buckets.astype(np.int64)]]

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the arrays to store, by name."""
        values = (self.codes, np.array([self.documents]), np.array([self.mean_length]))
        return dict(zip(_TENSORS, values, strict=True))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], where: str) -> Frequencies:
        """Read the arrays of `tensors`; UserError, which names `where`, if they do not fit."""
        types = (np.uint8, np.int64, np.float64)
        shapes = ((int(_STARTS[-1]),), (1,), (1,))
        codes, documents, mean_length = (
            check_array(tensors.get(name), name, dtype, shape, where)
            for name, dtype, shape in zip(_TENSORS, types, shapes, strict=True)
        )
        if documents[0] < 0 or not 1 <= mean_length[0] <= MAX_WORDS:
            what = f"{where}: the number of documents or their mean length is out of range"
            raise UserError(what, remedy=REMEDY)
        return cls(codes, int(documents[0]), float(mean_length[0]))


@compile_loop()
def bucket(h, kind):  # type: ignore[no-untyped-def]
    """Return the place of a term's frequency in `Frequencies.codes`."""
    return _STARTS[kind] + np.int64(h >> _SHIFTS[kind])


@compile_loop()
def _count_terms(data, offsets, counts):  # type: ignore[no-untyped-def]
    """Count each distinct bucket of each text in `counts`; return the words of all texts."""
    text, terms = np.empty(MAX_BYTES + 2, np.uint8), np.empty(MAX_TERMS, np.uint64)
    seen = np.full(_SEEN, -1, np.int64)  # a hash set of the buckets of the text
    total = 0
    for i in range(len(offsets) - 1):
        ends = read_terms(data, offsets[i], offsets[i + 1], text, terms)
        total += ends[0]
        slots = 64
        while slots < 2 * ends[3]:
            slots *= 2
        seen[:slots] = -1
        start = 0
        for kind in range(4):
            for term in range(start, ends[kind]):
                place = bucket(terms[term], kind)
                at = np.int64((np.uint64(place) * _MIX) >> np.uint64(40)) & (slots - 1)
                while seen[at] >= 0 and seen[at] != place:
                    at = (at + 1) & (slots - 1)
                if seen[at] < 0:
                    seen[at] = place
                    counts[place] += np.uint32(1)
            start = ends[kind]
    return total
