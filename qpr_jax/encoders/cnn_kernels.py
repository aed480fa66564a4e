"""Vectors of token ids: a convolution folded into tables of products, in compiled loops.

A convolution is a sum of products W_k @ E[token], so with a table of them a position of a question
costs a few additions. The loops are compiled by numba. The order of additions depends on the
question alone, so a question has the same vector, to the last bit, in any batch.
"""

from __future__ import annotations

import math

import numpy as np

from qpr_jax.encoders.folded_tables import FoldedTables, sums_of_rows
from qpr_jax.encoders.matrix_product import Panels, multiply
from qpr_jax.loops import compile_loop, prefetch
from qpr_jax.text.base import NO_PARTS, Parts

_AHEAD = 3  # tokens before its turn at which a token's products are fetched
_LINE = 64  # bytes of a line of the cache
# tanh x = x P(x^2) / Q(x^2) up to where it is 1, within 5 units of the last place: the
# approximation of Eigen and XLA, so of the training. It is seven times as fast as NumPy's.
_P0, _P1 = np.float32(4.89352455891786e-03), np.float32(6.37261928875436e-04)
_P2, _P3 = np.float32(1.48572235717979e-05), np.float32(5.12229709037114e-08)
_P4, _P5 = np.float32(-8.60467152213735e-11), np.float32(2.00018790482477e-13)
_P6 = np.float32(-2.76076847742355e-16)
_Q0, _Q1 = np.float32(4.89352518554385e-03), np.float32(2.26843463243900e-03)
_Q2, _Q3 = np.float32(1.18534705686654e-04), np.float32(1.19825839466702e-06)
_ONE = np.float32(7.90531110763549805)  # where tanh is 1


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
    for i, table in enumerate(tables.tables):
        start, at = at, at + table.shape[2]
        lowest = np.float32(-np.inf) if table.dtype == np.float32 else np.int16(-(2**15))
        _add_maxima(
            *(table, tables.sums(i, parts), token_ids, offsets),
            *(tables.scales[start:at], bias[start:at], lowest, table.dtype.type),
            *(values, start),
        )
    if values.shape[1] > at:
        more = sums_of_rows(embedding, parts)
        _add_scaled_sums(embedding, more, tables.rows, token_ids, offsets, values[:, at:])
    vectors = multiply(values, projection)
    if normalize:
        _normalize(vectors)
    return vectors


@compile_loop()
def _row(table, more, row, tap):  # type: ignore[no-untyped-def]
    """The products of a token with a position of the kernel; `more` follows the table."""
    return table[row, tap] if row < len(table) else more[row - len(table), tap]


@compile_loop(fastmath={"contract"})
def _tanh(x):  # type: ignore[no-untyped-def]
    """tanh of a float32."""
    x = _ONE if x > _ONE else x
    x = -_ONE if x < -_ONE else x
    y = x * x
    p = _P0 + y * (_P1 + y * (_P2 + y * (_P3 + y * (_P4 + y * (_P5 + y * _P6)))))
    return x * p / (_Q0 + y * (_Q1 + y * (_Q2 + y * _Q3)))


@compile_loop(fastmath={"contract"})
def _add_maxima(  # type: ignore[no-untyped-def]
    table, more, token_ids, offsets, scales, bias, lowest, number, out, column
):
    """Write tanh of the scaled maxima over time, plus `bias`, of each question to `out`.

    number, lowest: the type of the table, and its lowest number.
    out, column: contiguous [n, F], and where the f filters are, so that rows are contiguous, too.
    """
    _, window, filters = table.shape
    left = window // 2
    # Kernel positions that are added at once; beyond five, `total` holds partial sums.
    taps = 1 if window == 1 else 3 if window <= 3 else 5
    rows = np.zeros((5, 2), np.int64)
    total = np.zeros(filters, table.dtype)
    best = np.empty(filters, table.dtype)
    for question in range(len(out)):
        first, stop = offsets[question], offsets[question + 1]
        for i in range(filters):
            best[i] = lowest
        for place in range(max(stop - first, 1)):
            _fetch(table, token_ids, first + place + left + _AHEAD)
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
                        value = number(a[i] + b[i] + c[i])
                        best[i] = value if value > best[i] else best[i]
                    continue
                d = _row(table, more, rows[3, 0], rows[3, 1])
                e = _row(table, more, rows[4, 0], rows[4, 1])
                if window <= 5:
                    for i in range(filters):
                        value = number(a[i] + b[i] + c[i] + d[i] + e[i])
                        best[i] = value if value > best[i] else best[i]
                    continue
                for i in range(filters):
                    total[i] += a[i] + b[i] + c[i] + d[i] + e[i]
            if window > 5:
                for i in range(filters):
                    best[i] = total[i] if total[i] > best[i] else best[i]
                    total[i] = 0
        # tanh is monotone, so the maximum of the tanh is the tanh of the maximum.
        features = out[question][column : column + filters]
        for i in range(filters):
            features[i] = _tanh(np.float32(best[i]) * scales[i] + bias[i])


@compile_loop()
def _fetch(table, token_ids, at):  # type: ignore[no-untyped-def]
    """Fetch the products of a token into the cache, whose own guesses end with a row."""
    if at < len(token_ids) and token_ids[at] < len(table):
        for byte in range(0, table.strides[0], _LINE):
            prefetch(table, token_ids[at], byte)


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
