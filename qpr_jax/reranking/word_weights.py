"""Learned weights of the words in which two texts differ.

A word that only one of two texts has says more or less than its idf about their meaning, and so
does a pair of a word of one text and a word of the other ("buy" and "purchase", "can" and
"cannot"). Each has a weight, learned from pairs of training questions; the sum of those of a query
and a hit is a feature of the hit. Words and pairs whose hashes collide share a weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.index.text_kernels import MAX_WORDS, as_bytes, bucket, make_buffers, read_words
from qpr_jax.loops import compile_loop
from qpr_jax.reranking.base import starts_of

BITS = 18  # log2 of the number of weights
# The most words of each text that count: those that the other lacks, and those that form pairs.
UNMATCHED, _PAIRED = 6, 4
MOST = 2 * UNMATCHED + _PAIRED**2  # weights of two texts
_MIX = np.uint64(0x9FB21C651E98DF25)  # a product with it spreads the bits upwards


def zero_weights() -> np.ndarray:
    """Make weights of 0, float32 [2 ** BITS]."""
    return np.zeros(1 << BITS, np.float32)


def check_weights(weights: np.ndarray, where: str) -> None:
    """Raise a UserError, with `where`, unless the array is one of weights."""
    known = weights.dtype == np.float32 and weights.shape == (1 << BITS,)
    if not known or not np.isfinite(weights).all():
        raise UserError(
            f"{where}: expected `word_weights`, finite float32 [{1 << BITS}], got {weights.dtype} "
            f"{[*weights.shape]}",
            remedy="train the run again, or fetch the model again",
        )


def weight_rows(
    queries: Sequence[str], questions: Sequence[str], starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """List the weights of each query and hit: their rows, int32 [n], and starts, int64 [m + 1].

    The rows of hit i are rows[starts[i] : starts[i + 1]]. The arguments are those of
    `FeatureExtractor.compute`.
    """
    words = np.empty((2, MAX_WORDS), np.uint64)
    rows = np.full((len(questions), MOST), -1, np.int32)
    _write_rows(as_bytes(queries), as_bytes(questions), starts, make_buffers(), words, rows)
    used = rows >= 0
    return rows[used], starts_of(used.sum(axis=1))


@compile_loop()
def _write_rows(queries, questions, starts, buffers, words, out):  # type: ignore[no-untyped-def]
    for query in range(len(starts) - 1):
        data, offsets = queries
        count, _ = read_words(data, offsets[query], offsets[query + 1], buffers)
        words[0] = buffers[1]
        for row in range(starts[query], starts[query + 1]):
            data, offsets = questions
            others, _ = read_words(data, offsets[row], offsets[row + 1], buffers)
            query_words, other_words = words[0, :count], buffers[1][:others]
            own = _only_first(query_words, other_words, words[1])
            other = _only_first(other_words, query_words, words[1, own:])
            write_rows(words[1], own, other, out[row])


@compile_loop(forceinline=True)
def write_rows(words, own, other, rows):  # type: ignore[no-untyped-def]
    """Write the rows of the weights of two texts to `rows`, int32 [MOST]; return their number.

    words: uint64 [own + other or more], hashes of the first UNMATCHED words that only one of the
    texts has, and of those that only the other has.
    """
    count = own + other
    for i in range(count):
        rows[i] = bucket(words[i], BITS)
    for i in range(min(own, _PAIRED)):
        for j in range(own, own + min(other, _PAIRED)):
            # The sum is the same for both orders.
            rows[count] = bucket((words[i] + words[j]) * _MIX, BITS)
            count += 1
    return count


@compile_loop(forceinline=True)
def _only_first(words, others, out):  # type: ignore[no-untyped-def]
    """Write the first distinct words that `others` lacks, up to UNMATCHED; return their number."""
    count = 0
    for word in words:
        new = True
        for other in others:
            new &= word != other
        for i in range(count):
            new &= word != out[i]
        if new:
            out[count] = word
            count += 1
            if count == UNMATCHED:
                break
    return count
