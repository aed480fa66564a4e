"""A convolution folded into tables of the products of each token with each kernel position."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from qpr_jax.loops import compile_loop
from qpr_jax.machine import renew_after_fork
from qpr_jax.text.base import Parts

# Rows of a block of tokens, whose products are always computed together: the rounding of a matrix
# product depends on its number of rows. Ids are sorted by frequency, so neighbors occur together.
_BLOCK = 64
_LARGEST = 2**15 - 1  # of int16


class FoldedTables:
    """The products of each token with each position of each kernel, computed on first use.

    Safe to use from several threads. Rows that are not computed yet take no memory.

    In half precision a product is a whole number of steps of its filter, int16, and whole numbers
    add up without rounding. Each position has a limit, so that a sum over them is at most 2^15 - 1.
    The step is chosen so that no product of an embedding up to a given norm exceeds its limit: it
    is at most the product of the norms (Cauchy-Schwarz). A longer one is shrunk where it exceeds
    one, so that signs stay and tanh, which is constant there, hardly changes.

    Attributes:
      tables: float32, or int16 in half precision, [R, w, f] each; row 0, of padding, is zeros.
      scales: float32 [f], the steps of all kernels; ones in float32.
    """

    def __init__(
        self,
        embedding: np.ndarray,
        kernels: Sequence[np.ndarray],
        *,
        largest_norm: float | None = None,
    ) -> None:
        """Reserve the tables.

        Args:
          embedding: float32 [V, e], row 0 zeros.
          kernels: float32 [w, e, f] each.
          largest_norm: of embeddings, in half precision; None: float32.
        """
        rows, width = embedding.shape
        blocks = -(-rows // _BLOCK)
        self._embedding = embedding
        self._kernels = [np.moveaxis(kernel, 1, 0).reshape(width, -1) for kernel in kernels]
        self._computed = np.zeros(blocks, bool)
        self._renew_lock()
        renew_after_fork(self, FoldedTables._renew_lock)
        half = largest_norm is not None
        shapes = ((blocks * _BLOCK, len(kernel), kernel.shape[2]) for kernel in kernels)
        self.tables = [np.empty(shape, np.int16 if half else np.float32) for shape in shapes]
        self._steps: list[np.ndarray] = []
        self._limits: list[np.ndarray] = []
        if largest_norm is not None:
            for kernel in kernels:
                steps, limits = _steps_of(kernel, largest_norm)
                self._steps.append(steps)
                self._limits.append(limits)
            self.scales = np.concatenate(self._steps)
        else:
            self.scales = np.ones(sum(kernel.shape[2] for kernel in kernels), np.float32)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

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
                if not self._computed[block]:
                    self._compute_block(int(block) * _BLOCK)
                    self._computed[block] = True

    def sums(self, number: int, parts: Parts) -> np.ndarray:
        """Add up rows of the table of a kernel: as its rows, [parts.tokens, w, f]."""
        table = self.tables[number]
        sums = _sums_of_rows(table.reshape(len(table), -1), *parts)
        return self._fit(number, sums.reshape(-1, *table.shape[1:]))

    def _compute_block(self, start: int) -> None:
        rows = np.zeros((_BLOCK, self._embedding.shape[1]), np.float32)
        present = self._embedding[start : start + _BLOCK]
        rows[: len(present)] = present
        for number, (table, kernel) in enumerate(zip(self.tables, self._kernels, strict=True)):
            products = table[start : start + _BLOCK]
            if not self._steps:
                np.matmul(rows, kernel, out=products.reshape(_BLOCK, -1))
                continue
            exact = (rows @ kernel).reshape(products.shape)
            products[:] = self._fit(number, exact / self._steps[number])

    def _fit(self, number: int, steps: np.ndarray) -> np.ndarray:
        """Round steps [m, w, f] and shrink rows that exceed a limit; in float32 nothing changes."""
        if not self._limits:
            return steps
        limits = self._limits[number]
        excess = (np.abs(steps) / np.maximum(limits, 1)).max(axis=(1, 2), keepdims=True, initial=1)
        return np.clip(np.rint(steps / excess), -limits, limits).astype(np.int16)


def norms(array: np.ndarray, axis: int) -> np.ndarray:
    """Norms in float64, which the squares of float32 do not overflow."""
    result: np.ndarray = np.sqrt(np.square(array, dtype=np.float64).sum(axis=axis))
    return result


def sums_of_rows(table: np.ndarray, parts: Parts) -> np.ndarray:
    """Add up each token's rows of a table [R, m]: float32 [parts.tokens, m]."""
    sums: np.ndarray = _sums_of_rows(table, *parts)
    return sums


def _steps_of(kernel: np.ndarray, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """The step of each filter, float32 [f], and the most steps of a product, float32 [w, f].

    largest: the norm of an embedding.
    """
    sizes = norms(kernel, 1)
    total = sizes.sum(axis=0)
    total[total == 0] = 1  # the products are zeros
    limits = np.floor(_LARGEST * sizes / total)
    # One step less, since a product is rounded before it is counted in steps.
    steps = (largest or 1.0) * total / (_LARGEST - 2 * len(kernel))
    return steps.astype(np.float32), limits.astype(np.float32)


@compile_loop()
def _sums_of_rows(table, rows, offsets):  # type: ignore[no-untyped-def]
    """The sum of each token's rows of the table [R, m]: float32 [len(offsets) - 1, m]."""
    sums = np.zeros((len(offsets) - 1, table.shape[1]), np.float32)
    for token in range(len(sums)):
        total = sums[token]
        for at in range(offsets[token], offsets[token + 1]):
            row = table[rows[at]]
            for i in range(len(total)):
                total[i] += row[i]
    return sums
