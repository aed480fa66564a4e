"""Vectors of token ids: a convolution folded into tables of products, in loops compiled by numba.

A convolution is a sum of products W_k @ E[token], so with a table of them a position of a question
costs a few additions. The order of additions depends on the question alone, so a question has the
same vector, to the last bit, in any batch.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import numpy as np

from qpr_jax.models import embedding_norm, unit_rows
from qpr_jax.running import compile_loop
from qpr_jax.text.tokenizer import SubwordBags, TokenIds

_UNROLLED = 8  # features that `_project` adds at once, in a loop that LLVM unrolls
_ROWS = 16  # questions that `_project` keeps in the processor's cache
# tanh x = x P(x^2) / Q(x^2) up to where it is 1, within 5 units of the last place: the
# approximation of Eigen and XLA, so of the training. It is seven times as fast as NumPy's.
_P0, _P1 = np.float32(4.89352455891786e-03), np.float32(6.37261928875436e-04)
_P2, _P3 = np.float32(1.48572235717979e-05), np.float32(5.12229709037114e-08)
_P4, _P5 = np.float32(-8.60467152213735e-11), np.float32(2.00018790482477e-13)
_P6 = np.float32(-2.76076847742355e-16)
_Q0, _Q1 = np.float32(4.89352518554385e-03), np.float32(2.26843463243900e-03)
_Q2, _Q3 = np.float32(1.18534705686654e-04), np.float32(1.19825839466702e-06)
_ONE = np.float32(7.90531110763549805)  # where tanh is 1


class FoldedCnn:
    """A convolution, with the products of each token and kernel position computed on first use.

    Two threads that compute the same row write the same numbers. Other rows take no memory.

    Source: Bonadiman, Kumar and Mittal (2019), section 2.1.1, equation (1).
    """

    def __init__(
        self,
        embedding: np.ndarray,
        kernels: Sequence[np.ndarray],
        biases: Sequence[np.ndarray],
        projection: np.ndarray,
        *,
        normalize: bool,
    ) -> None:
        """Reserve the tables; arguments as of `CnnEncoder`."""
        self._embedding, self._normalize = embedding, normalize
        self._kernels = [[_padded(tap) for tap in kernel] for kernel in kernels]
        self._bias = np.concatenate(biases)
        self._bag_of_words = len(projection) > len(self._bias)
        self._projection = _padded(projection)
        self._computed = np.zeros(len(embedding), bool)
        shapes = ((len(embedding), len(k), k.shape[2]) for k in kernels)
        self._tables = [_reserve(shape) for shape in shapes]

    def compute(self, token_ids: np.ndarray) -> None:
        """Compute the products of these tokens."""
        if self._computed[token_ids].all():
            return
        tokens = np.unique(token_ids[~self._computed[token_ids]])
        more = -self._embedding.shape[1] % _UNROLLED
        rows = np.pad(self._embedding[tokens], ((0, 0), (0, more)))
        for table, kernel in zip(self._tables, self._kernels, strict=True):
            for tap, weights in enumerate(kernel):
                products = np.zeros((len(tokens), weights.shape[1]), np.float32)
                _project(rows, weights, products)
                table[tokens, tap] = products
        self._computed[tokens] = True

    def encode(self, tokens: TokenIds) -> np.ndarray:
        """Compute the vectors of n questions, float32 [n, d]."""
        token_ids, offsets, _, parts = tokens
        rows, scales = sum_parts(self._embedding, parts)
        self.compute(np.append(token_ids[token_ids < len(self._embedding)], parts.rows))
        values = np.zeros((len(offsets) - 1, len(self._projection)), np.float32)
        at = 0
        for table in self._tables:
            filters = table.shape[2]
            more = _sums_of_rows(table.reshape(len(table), -1), parts) * scales
            more = more.reshape(-1, *table.shape[1:])
            biases = self._bias[at : at + filters]
            _add_maxima(table, more, token_ids, offsets, biases, values, at)
            at += filters
        if self._bag_of_words:
            _add_rows(self._embedding, rows, token_ids, offsets, values, at)
            lengths = np.maximum(np.diff(offsets), 1)[:, None]
            values[:, at : at + rows.shape[1]] *= (1 / np.sqrt(lengths)).astype(np.float32)
        vectors = np.zeros((len(values), self._projection.shape[1]), np.float32)
        _project(values, self._projection, vectors)
        return unit_rows(vectors) if self._normalize else vectors


def _reserve(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of float32 whose rows take memory once they are written.

    NumPy asks for pages of 2 MiB: a few rows would take the memory of all of them.
    """
    memory = mmap.mmap(-1, 4 * math.prod(shape), flags=mmap.MAP_PRIVATE)
    return np.frombuffer(memory, np.float32).reshape(shape)


def _padded(matrix: np.ndarray) -> np.ndarray:
    """Add rows of zeros, as many as `_project` needs: float32."""
    more = -len(matrix) % _UNROLLED
    return np.ascontiguousarray(np.pad(matrix, ((0, more), (0, 0))), np.float32)


def sum_parts(embedding: np.ndarray, parts: SubwordBags) -> tuple[np.ndarray, np.ndarray]:
    """The embeddings of tokens that are sums, float32 [M, e], and their scales, float32 [M, 1]."""
    sums = _sums_of_rows(embedding, parts)
    most = parts.limits[:, None] * np.float32(embedding_norm(embedding.shape[1]))
    norms = np.sqrt(np.square(sums).sum(axis=1, keepdims=True))
    scales = most / np.maximum(norms, most)
    return sums * scales, scales


def _sums_of_rows(table: np.ndarray, parts: SubwordBags) -> np.ndarray:
    """Add up each token's rows of a table [R, m]: float32 [parts.tokens, m]."""
    sums = np.zeros((parts.tokens, table.shape[1]), np.float32)
    _add_rows(table, table[:0], parts.rows, parts.offsets, sums, 0)
    return sums


@compile_loop()
def _add_rows(table, more, rows, offsets, out, column):  # type: ignore[no-untyped-def]
    """Add up the rows of each group in `out`, from `column` on; `more` follows the table."""
    count, width = table.shape
    for group in range(len(out)):
        total = out[group][column : column + width]
        for at in range(offsets[group], offsets[group + 1]):
            row = table[rows[at]] if rows[at] < count else more[rows[at] - count]
            for i in range(width):
                total[i] += row[i]


@compile_loop(fastmath={"contract"})
def _tanh(x):  # type: ignore[no-untyped-def]
    x = _ONE if x > _ONE else x
    x = -_ONE if x < -_ONE else x
    y = x * x
    p = _P0 + y * (_P1 + y * (_P2 + y * (_P3 + y * (_P4 + y * (_P5 + y * _P6)))))
    return x * p / (_Q0 + y * (_Q1 + y * (_Q2 + y * _Q3)))


@compile_loop(fastmath={"contract"})
def _add_maxima(table, more, token_ids, offsets, bias, out, column):  # type: ignore[no-untyped-def]
    """Write tanh of the maxima over time, plus `bias`, of each question to its row of `out`.

    `more` has the products of the tokens after those of `table`. The filters are written from
    `column` on.
    """
    count, window, filters = table.shape
    left = window // 2
    total, best = np.empty(filters, np.float32), np.empty(filters, np.float32)
    for question in range(len(out)):
        first, stop = offsets[question], offsets[question + 1]
        for i in range(filters):
            best[i] = -np.inf
        for place in range(first, max(stop, first + 1)):
            for i in range(filters):
                total[i] = 0
            for tap in range(window):
                at = place - left + tap
                if first <= at < stop:
                    token = token_ids[at]
                    row = table[token, tap] if token < count else more[token - count, tap]
                    for i in range(filters):
                        total[i] += row[i]
            for i in range(filters):
                best[i] = total[i] if total[i] > best[i] else best[i]
        # tanh is monotone, so the maximum of the tanh is the tanh of the maximum.
        features = out[question][column : column + filters]
        for i in range(filters):
            features[i] = _tanh(best[i] + bias[i])


@compile_loop(fastmath={"contract"})
def _project(values, projection, out):  # type: ignore[no-untyped-def]
    """Add values [n, f] times the projection [f, d] to `out`; f is a multiple of _UNROLLED.

    A library's product (BLAS) would round a row differently in another batch, and start threads of
    its own in each thread that encodes.
    """
    count, columns = out.shape
    for start in range(0, count, _ROWS):
        for k in range(0, len(projection), _UNROLLED):
            rows = projection[k : k + _UNROLLED]
            for question in range(start, min(start + _ROWS, count)):
                total, factors = out[question], values[question, k : k + _UNROLLED]
                for i in range(columns):
                    added = factors[0] * rows[0, i]
                    for j in range(1, _UNROLLED):
                        added += factors[j] * rows[j, i]
                    total[i] += added
