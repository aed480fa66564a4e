"""Vectors of word ids: a convolution folded into tables of words, in compiled loops.

A convolution over a window is a sum of per-word products W_k @ E[word], so with a table of them a
position of a question costs a few additions. The loops are numba's: each adds in an order of its
own question alone, so a question has the same vector, to the last bit, in any batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np

# Words whose products are made at once, always together: the sums of a product of matrices depend
# on how many rows it has. Ids are sorted by frequency, so neighbours are needed together.
_FOLDED = 64
_FEATURES = 256  # of the projection, that stay in a core's cache while all questions pass


class FoldedTables:
    """The products of every word with every place of each window, made when they are first needed.

    Safe to use from several threads. What is not made yet takes no memory.
    """

    def __init__(self, embedding: np.ndarray, kernels: Sequence[np.ndarray]) -> None:
        """embedding: float32 [V, e], row 0 zeros. kernels: float32 [w, e, f] each."""
        words, width = embedding.shape
        blocks = -(-words // _FOLDED)
        self._embedding = embedding
        self._kernels = [np.moveaxis(kernel, 1, 0).reshape(width, -1) for kernel in kernels]
        self._made = np.zeros(blocks, bool)
        self._lock = threading.Lock()
        self.tables = [
            np.empty((blocks * _FOLDED, len(kernel), kernel.shape[2]), np.float32)
            for kernel in kernels
        ]

    def make(self, words: np.ndarray) -> None:
        """Make the rows of these words (and of padding, word 0)."""
        if self._made[0] and self._made[words // _FOLDED].all():
            return
        with self._lock:
            for block in np.unique(np.append(words // _FOLDED, 0)):
                if self._made[block]:
                    continue
                start = int(block) * _FOLDED
                rows = np.zeros((_FOLDED, self._embedding.shape[1]), np.float32)
                present = self._embedding[start : start + _FOLDED]
                rows[: len(present)] = present
                for table, kernel in zip(self.tables, self._kernels, strict=True):
                    products = table[start : start + _FOLDED]
                    np.matmul(rows, kernel, out=products.reshape(_FOLDED, -1))
                self._made[block] = True


def encode(
    tables: FoldedTables,
    embedding: np.ndarray,
    bias: np.ndarray,
    projection: np.ndarray,
    words: np.ndarray,
    offsets: np.ndarray,
    *,
    normalize: bool = False,
) -> np.ndarray:
    """Vectors float32 [n, d] of n questions.

    bias: float32 [f], of all windows. projection: float32 [f, d], or [f + e, d] where the scaled
    sum of the words is a feature too. words: int32, those of question i at offsets[i:i + 2].
    normalize: to length 1.
    Source: Bonadiman, Kumar and Mittal (2019), section 2.1.1, equation (1).
    """
    tables.make(words)
    questions, features = len(offsets) - 1, len(projection)
    values = np.zeros((questions, features), np.float32)
    at = 0
    for table in tables.tables:
        filters = table.shape[2]
        _add_maxima(table, words, offsets, values[:, at : at + filters])
        at += filters
    # tanh is monotone, so the maximum of the tanh is the tanh of the maximum.
    maxima = values[:, :at]
    maxima += bias
    np.tanh(maxima, out=maxima)
    if features > at:
        _add_scaled_sums(embedding, words, offsets, values[:, at:])
    vectors = np.zeros((questions, projection.shape[1]), np.float32)
    _add_products(values, projection, vectors)
    if normalize:
        _normalize(vectors)
    return vectors


def _compiled(**how: Any) -> Callable[[Callable[..., None]], Any]:
    """Compile a loop, and keep what comes out on disk where there is a place for it."""

    def compiled(loop: Callable[..., None]) -> Any:
        try:
            return numba.njit(cache=True, nogil=True, error_model="numpy", **how)(loop)
        except RuntimeError:  # neither the package's folder nor the home can be written
            return numba.njit(nogil=True, error_model="numpy", **how)(loop)

    return compiled


@_compiled()
def _add_maxima(table, words, offsets, out):  # type: ignore[no-untyped-def]
    """Write the maxima over time of each question to `out` [n, f]."""
    _, window, filters = table.shape
    left = window // 2
    # So many places of the window are added up at once; beyond five, the sums wait in `total`.
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
                    # Padding's row is zeros.
                    rows[tap, 0] = words[at] if inside else 0
                    rows[tap, 1] = k if inside else 0
                a = table[rows[0, 0], rows[0, 1]]
                if taps == 1:
                    for i in range(filters):
                        best[i] = a[i] if a[i] > best[i] else best[i]
                    continue
                b, c = table[rows[1, 0], rows[1, 1]], table[rows[2, 0], rows[2, 1]]
                if taps == 3:
                    for i in range(filters):
                        value = a[i] + b[i] + c[i]
                        best[i] = value if value > best[i] else best[i]
                    continue
                d, e = table[rows[3, 0], rows[3, 1]], table[rows[4, 0], rows[4, 1]]
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


@_compiled()
def _add_scaled_sums(embedding, words, offsets, out):  # type: ignore[no-untyped-def]
    """Add the sum of each question's words over the root of their number to `out` [n, e]."""
    width = embedding.shape[1]
    for question in range(len(out)):
        first, stop = offsets[question], offsets[question + 1]
        total = out[question]
        for at in range(first, stop):
            word = embedding[words[at]]
            for i in range(width):
                total[i] += word[i]
        scale = np.float32(1 / np.sqrt(max(stop - first, 1)))
        for i in range(width):
            total[i] *= scale


@_compiled(fastmath={"contract"})
def _add_products(values, projection, out):  # type: ignore[no-untyped-def]
    """Add values [n, f] @ projection [f, d] to `out`.

    Each row's sums are made in one order, four features at a time, whichever rows are beside it.
    """
    features, width = projection.shape
    together = len(values) - len(values) % 4
    for start in range(0, features, _FEATURES):
        stop = min(start + _FEATURES, features)
        whole = stop - (stop - start) % 4
        for row in range(0, together, 4):
            v0, v1, v2, v3 = values[row], values[row + 1], values[row + 2], values[row + 3]
            o0, o1, o2, o3 = out[row], out[row + 1], out[row + 2], out[row + 3]
            for f in range(start, whole, 4):
                p0, p1 = projection[f], projection[f + 1]
                p2, p3 = projection[f + 2], projection[f + 3]
                for i in range(width):
                    a, b, c, d = p0[i], p1[i], p2[i], p3[i]
                    o0[i] += v0[f] * a + v0[f + 1] * b + v0[f + 2] * c + v0[f + 3] * d
                    o1[i] += v1[f] * a + v1[f + 1] * b + v1[f + 2] * c + v1[f + 3] * d
                    o2[i] += v2[f] * a + v2[f + 1] * b + v2[f + 2] * c + v2[f + 3] * d
                    o3[i] += v3[f] * a + v3[f + 1] * b + v3[f + 2] * c + v3[f + 3] * d
        for row in range(together, len(values)):
            v0, o0 = values[row], out[row]
            for f in range(start, whole, 4):
                p0, p1 = projection[f], projection[f + 1]
                p2, p3 = projection[f + 2], projection[f + 3]
                for i in range(width):
                    a, b, c, d = p0[i], p1[i], p2[i], p3[i]
                    o0[i] += v0[f] * a + v0[f + 1] * b + v0[f + 2] * c + v0[f + 3] * d
        for row in range(len(values)):
            v0, o0 = values[row], out[row]
            for f in range(whole, stop):
                p0 = projection[f]
                for i in range(width):
                    o0[i] += v0[f] * p0[i]


@_compiled()
def _normalize(vectors):  # type: ignore[no-untyped-def]
    """Bring each row to length 1; one of nearly none stays short."""
    for row in vectors:
        squares = np.float32(0)
        for value in row:
            squares += value * value
        scale = np.float32(1 / np.sqrt(max(squares, np.float32(1e-12))))
        for i in range(len(row)):
            row[i] *= scale
