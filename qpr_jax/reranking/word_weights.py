"""Learned weights of the words in which two texts differ.

A word that only one of two texts has says more or less than its idf about their meaning, and so
does a pair of a word of one text and a word of the other ("buy" and "purchase", "can" and
"cannot"). Each has a weight, learned from pairs of training questions; the sum of those of a query
and a hit is a feature of the hit. Words and pairs whose hashes collide share a weight.
"""

from __future__ import annotations

import numpy as np

from qpr_jax.machine import compile_loop

BITS = 18  # log2 of the number of weights
# The most words of each text that count: those that the other lacks, and those that form pairs.
_UNMATCHED, _PAIRED = 6, 4
MOST = 2 * _UNMATCHED + _PAIRED**2  # weights of two texts
_MIX = np.uint64(0x9FB21C651E98DF25)  # a product with it spreads the bits upwards
_SHIFT = np.uint64(64 - BITS)


def zero_weights() -> np.ndarray:
    """Make weights of 0, float32 [2 ** BITS]."""
    return np.zeros(1 << BITS, np.float32)


@compile_loop()
def write_rows(times, others, hashes, rows):  # type: ignore[no-untyped-def]
    """Write the rows of the weights of a query and a hit to `rows`, int32 [MOST], then -1.

    Args:
      times: int64 [n], how often the hit has each of the n distinct words of the query.
      others: int64 [k], the distinct words of the hit; those of n and more are not in the query.
      hashes: uint64, of each word.

    Returns:
      The number of rows.
    """
    words = np.empty(2 * _UNMATCHED, np.uint64)
    own = 0
    for word in others:
        if word >= len(times) and own < _UNMATCHED:
            words[own] = hashes[word]
            own += 1
    count = own
    for word in range(len(times)):
        if times[word] == 0 and count < own + _UNMATCHED:
            words[count] = hashes[word]
            count += 1
    for i in range(count):
        rows[i] = words[i] >> _SHIFT
    paired = min(count, own + _PAIRED)
    for i in range(min(own, _PAIRED)):
        for j in range(own, paired):
            # The sum is the same for both orders.
            rows[count] = ((words[i] + words[j]) * _MIX) >> _SHIFT
            count += 1
    rows[count:] = -1
    return count
