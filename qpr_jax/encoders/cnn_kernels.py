"""Vectors of token ids: a convolution folded into tables of products, in compiled loops.

A convolution is a sum of products W_k @ E[token], so with a table of them a position of a question
costs a few additions. The loops are compiled by numba. The order of additions depends on the
question alone, so a question has the same vector, to the last bit, in any batch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import numpy as np

from qpr_jax.encoders.matrix_product import Panels, multiply
from qpr_jax.loops import compile_loop
from qpr_jax.text.base import NO_PARTS, Parts

# Rows of a block of tokens, whose products are always computed together: the rounding of a matrix
# product depends on its number of rows. Ids are sorted by frequency, so neighbors occur together.
_BLOCK = 64


class FoldedTables:
    """The products of each token with each position of each kernel, computed on first use.

    Safe to use from several threads. Rows that are not computed yet take no memory.
    """

    def __init__(self, embedding: np.ndarray, kernels: Sequence[np.ndarray]) -> None:
        """embedding: float32 [V, e], row 0 zeros. kernels: float32 [w, e, f] each."""
        rows, width = embedding.shape
        blocks = -(-rows // _BLOCK)
        self._embedding = embedding
        self._kernels = [np.moveaxis(kernel, 1, 0).reshape(width, -1) for kernel in kernels]
        self._computed = np.zeros(blocks, bool)
        self._lock = threading.Lock()
        shapes = ((blocks * _BLOCK, len(kernel), kernel.shape[2]) for kernel in kernels)
        self.tables = [np.empty(shape, np.float32) for shape in shapes]

    @property
    def rows(self) -> int:
        """Rows of each table, of which the first V are tokens."""
        return len(self._computed) * _BLOCK

    def compute(self, token_ids: np.ndarray) -> None:
        """Compute the rows of these tokens, and of padding."""
        if self._computed[0] and self._computed[token_ids // _BLOCK].all():
            return
        with self._lock:
            for block in np.unique(np.append(token_ids // _BLOCK, 0)):
                if self._computed[block]:
                    continue
                start = int(block) * _BLOCK
                rows = np.zeros((_BLOCK, self._embedding.shape[1]), np.float32)
                present = self._embedding[start : start + _BLOCK]
                rows[: len(present)] = present
                for table, kernel in zip(self.tables, self._kernels, strict=True):
                    products = table[start : start + _BLOCK]
                    np.matmul(rows, kernel, out=products.reshape(_BLOCK, -1))
                self._computed[block] = True


def encode(
    tables: FoldedTables,
    embedding: np.ndarray,
    bias: np.ndarray,
    projection: Panels,
    token_ids: np.ndarray,
    offsets: np.ndarray,
    *,
    normalize: bool = False,
    parts: Parts = NO_PARTS,
) -> np.ndarray:
    """Compute the vectors of n questions.

    Args:
      tables: of the kernels.
      embedding: float32 [V, e].
      bias: float32 [f], of all kernels.
      projection: of float32 [f, d], or [f + e, d] with a bag of words.
      token_ids: int32, those of question i at offsets[i] to offsets[i + 1].
      offsets: int64 [n + 1].
      normalize: scale vectors to length 1.
      parts: of the token ids from V, whose embeddings are sums of rows.

    Returns:
      float32 [n, d].

    Source: Bonadiman, Kumar and Mittal (2019), section 2.1.1, equation (1).
    """
    sums = token_ids >= len(embedding)
    if sums.any():
        tokens, number = np.unique(token_ids[sums] - len(embedding), return_inverse=True)
        token_ids, parts = token_ids.copy(), parts.take(tokens)
        token_ids[sums] = tables.rows + number
    else:
        parts = NO_PARTS
    tables.compute(np.append(token_ids[~sums], parts.rows))
    values = np.zeros((len(offsets) - 1, projection.values.shape[1]), np.float32)
    at = 0
    for table in tables.tables:
        start, at = at, at + table.shape[2]
        more = _sums_of_rows(table.reshape(len(table), -1), *parts).reshape(-1, *table.shape[1:])
        _add_maxima(table, more, token_ids, offsets, values[:, start:at])
    # tanh is monotone, so the maximum of the tanh is the tanh of the maximum.
    maxima = values[:, :at]
    maxima += bias
    np.tanh(maxima, out=maxima)
    if values.shape[1] > at:
        more = _sums_of_rows(embedding, *parts)
        _add_scaled_sums(embedding, more, tables.rows, token_ids, offsets, values[:, at:])
    vectors = multiply(values, projection)
    if normalize:
        _normalize(vectors)
    return vectors


@compile_loop()
def _sums_of_rows(table, rows, offsets):  # type: ignore[no-untyped-def]
    """The sum of each token's rows of the table [R, m]: [len(offsets) - 1, m]."""
    sums = np.zeros((len(offsets) - 1, table.shape[1]), np.float32)
    for token in range(len(sums)):
        total = sums[token]
        for at in range(offsets[token], offsets[token + 1]):
            row = table[rows[at]]
            for i in range(len(total)):
                total[i] += row[i]
    return sums


@compile_loop()
def _row(table, more, row, tap):  # type: ignore[no-untyped-def]
    """The products of a token with a position of the kernel; `more` follows the table."""
    return table[row, tap] if row < len(table) else more[row - len(table), tap]


@compile_loop()
def _add_maxima(table, more, token_ids, offsets, out):  # type: ignore[no-untyped-def]
    """Write the maxima over time of each question to `out` [n, f]."""
    _, window, filters = table.shape
    left = window // 2
    # Kernel positions that are added at once; beyond five, `total` holds partial sums.
    taps = 1 if window == 1 else 3 if window <= 3 else 5
    rows = np.zeros((5, 2), np.int64)
    total = np.zeros(filters, np.float32)
    for question in range(len(out)):
        first, stop = offsets[question], offsets[question + 1]
        best = out[question]
        for i in range(filters):
            best[i] = -np.inf
        for place in range(max(stop - first, 1)):
            for start in range(0, window, taps):
                for tap in range(taps):
                    k = start + tap
                    at = first + place - left + k
                    inside = k < window and first <= at < stop
                    # The row of padding is zeros.
                    rows[tap, 0] = token_ids[at] if inside else 0
                    rows[tap, 1] = k if inside else 0
                a = _row(table, more, rows[0, 0], rows[0, 1])
                if taps == 1:
                    for i in range(filters):
                        best[i] = a[i] if a[i] > best[i] else best[i]
                    continue
                b = _row(table, more, rows[1, 0], rows[1, 1])
                c = _row(table, more, rows[2, 0], rows[2, 1])
                if taps == 3:
                    for i in range(filters):
                        value = a[i] + b[i] + c[i]
                        best[i] = value if value > best[i] else best[i]
                    continue
                d = _row(table, more, rows[3, 0], rows[3, 1])
                e = _row(table, more, rows[4, 0], rows[4, 1])
                if window <= 5:
                    for i in range(filters):
                        value = a[i] + b[i] + c[i] + d[i] + e[i]
                        best[i] = value if value > best[i] else best[i]
                    continue
                for i in range(filters):
                    total[i] += a[i] + b[i] + c[i] + d[i] + e[i]
            if window > 5:
                for i in range(filters):
                    best[i] = total[i] if total[i] > best[i] else best[i]
                    total[i] = 0


@compile_loop()
def _add_scaled_sums(embedding, more, known, token_ids, offsets, out):  # type: ignore[no-untyped-def]
    """Add each question's sum of embeddings over the root of its length to `out` [n, e].

    `more` are the embeddings of the ids from `known`.
    """
    width = embedding.shape[1]
    for question in range(len(out)):
        first, stop = offsets[question], offsets[question + 1]
        total = out[question]
        for at in range(first, stop):
            token = token_ids[at]
            row = embedding[token] if token < known else more[token - known]
            for i in range(width):
                total[i] += row[i]
        scale = np.float32(1 / np.sqrt(max(stop - first, 1)))
        for i in range(width):
            total[i] *= scale


@compile_loop()
def _normalize(vectors):  # type: ignore[no-untyped-def]
    """Scale each row to length 1, as `unit_vectors`; a row of zeros stays."""
    for row in vectors:
        largest = np.float32(0)
        for value in row:
            largest = max(largest, abs(value))
        if largest == 0:
            continue
        power = np.float32(math.ldexp(1.0, math.frexp(largest)[1] - 1))
        squares = np.float32(0)
        for i in range(len(row)):
            row[i] /= power
            squares += row[i] * row[i]
        scale = np.float32(1 / np.sqrt(squares))
        for i in range(len(row)):
            row[i] *= scale
