"""A convolution folded into tables of the products of each token with each kernel position."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from qpr_jax.machine import compile_loop, renew_after_fork
from qpr_jax.text.base import Parts

# Rows of a block of tokens, whose products are always computed together: the rounding of a matrix
# product depends on its number of rows. Ids are sorted by frequency, so neighbors occur together.
_BLOCK = 64


class FoldedTables:
    """The products of each token with each position of each kernel, computed on first use.

    Safe to use from several threads. Rows that are not computed yet take no memory.

    Attributes:
      tables: float32 [R, w, f] each; row 0, of padding, is zeros.
    """

    def __init__(self, embedding: np.ndarray, kernels: Sequence[np.ndarray]) -> None:
        """Reserve the tables.

        Args:
          embedding: float32 [V, e], row 0 zeros.
          kernels: float32 [w, e, f] each.
        """
        rows, width = embedding.shape
        blocks = -(-rows // _BLOCK)
        self._embedding = embedding
        self._kernels = [np.moveaxis(kernel, 1, 0).reshape(width, -1) for kernel in kernels]
        self._computed = np.zeros(blocks, bool)
        self._renew_lock()
        renew_after_fork(self, FoldedTables._renew_lock)
        shapes = ((blocks * _BLOCK, len(kernel), kernel.shape[2]) for kernel in kernels)
        self.tables = [np.empty(shape, np.float32) for shape in shapes]

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

    def _compute_block(self, start: int) -> None:
        rows = np.zeros((_BLOCK, self._embedding.shape[1]), np.float32)
        present = self._embedding[start : start + _BLOCK]
        rows[: len(present)] = present
        for table, kernel in zip(self.tables, self._kernels, strict=True):
            products = table[start : start + _BLOCK]
            np.matmul(rows, kernel, out=products.reshape(_BLOCK, -1))


def sums_of_rows(table: np.ndarray, parts: Parts) -> np.ndarray:
    """Add up each token's rows of a table [R, m]: float32 [parts.tokens, m]."""
    sums = np.zeros((parts.tokens, table.shape[1]), np.float32)
    _add_rows(table, parts.rows, parts.offsets, sums)
    return sums


@compile_loop()
def _add_rows(table, rows, offsets, sums):  # type: ignore[no-untyped-def]
    """Add each token's rows of the table [R, m] to its row of `sums` [tokens, m]."""
    for token in range(len(sums)):
        total = sums[token]
        for at in range(offsets[token], offsets[token + 1]):
            row = table[rows[at]]
            for i in range(len(row)):
                total[i] += row[i]
