"""The sum of any loss of rows over N x N scores, with a few rows in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.tiles import in_tiles, join_tiles

# (rows, shared, row_ints, shared_ints) -> the loss of each row, [t].
RowLosses = Callable[[Any, Any, Any, Any], jax.Array]


def split_tiles(arrays: tuple[Any, ...], count: int, tile: int) -> tuple[Any, ...]:
    """Split trees of arrays [n, ...] into tiles; the last item masks the rows of padding."""
    return jax.tree.map(lambda array: in_tiles(array, tile), (*arrays, jnp.ones(count, bool)))


def sum_in_tiles(
    losses: RowLosses,
    rows: Any,
    shared: Any,
    row_ints: Any,
    shared_ints: Any,
    tile: int,
    axis_name: Hashable | None = None,
) -> jax.Array:
    """Sum `losses` over all rows, and its gradient, in tiles of about `tile` rows.

    The gradient is computed in the same pass as the value, while the scores of a tile exist, so
    that no array of n x N is kept and nothing is computed twice.

    Args:
      losses: the loss of each of some rows.
      rows: tree of floating arrays [n, ...].
      shared: tree of floating arrays that every row needs.
      row_ints: tree of integer arrays [n, ...].
      shared_ints: tree of integer arrays that every row needs, or None.
      tile: rows of a tile, at least 1; tiles are made equal and the last is padded.
      axis_name: the mapped axis over which all of these differ, if any.

    Returns:
      Scalar of the type of the rows.

    Example:
      >>> x = jnp.arange(6.0).reshape(3, 2)
      >>> product = lambda rows, shared, row_ints, shared_ints: rows @ shared
      >>> float(sum_in_tiles(product, x, jnp.ones(2), jnp.arange(3), None, tile=2))
      15.0
    """
    first = jax.tree.leaves(rows)[0]
    count = len(first)

    def tile_sum(rows: Any, shared: Any, row_ints: Any, shared_ints: Any, live: Any) -> Any:
        return jnp.where(live, losses(rows, shared, row_ints, shared_ints), 0).sum()

    def zero() -> jax.Array:
        start = jnp.zeros((), first.dtype)
        return start if axis_name is None else lax.pcast(start, axis_name, to="varying")

    @jax.custom_vjp
    def total(rows: Any, shared: Any, row_ints: Any, shared_ints: Any) -> jax.Array:
        def step(total: jax.Array, inputs: Any) -> tuple[jax.Array, None]:
            tile_rows, tile_ints, live = inputs
            return total + tile_sum(tile_rows, shared, tile_ints, shared_ints, live), None

        inputs = split_tiles((rows, row_ints), count, tile)
        return lax.scan(step, zero(), inputs)[0]

    def forward(rows: Any, shared: Any, row_ints: Any, shared_ints: Any) -> Any:
        def step(total: Any, inputs: Any) -> Any:
            tile_rows, tile_ints, live = inputs
            value, (rows_gradient, shared_gradient) = jax.value_and_grad(tile_sum, argnums=(0, 1))(
                tile_rows, shared, tile_ints, shared_ints, live
            )
            return jax.tree.map(jnp.add, total, (value, shared_gradient)), rows_gradient

        start = (zero(), jax.tree.map(jnp.zeros_like, shared))
        inputs = split_tiles((rows, row_ints), count, tile)
        (value, shared_gradient), tiles = lax.scan(step, start, inputs)
        rows_gradient = jax.tree.map(lambda gradient: join_tiles(gradient, count), tiles)
        return value, (rows_gradient, shared_gradient)

    def backward(gradients: Any, weight: jax.Array) -> Any:
        return *jax.tree.map(lambda gradient: weight * gradient, gradients), None, None

    total.defvjp(forward, backward)
    return total(rows, shared, row_ints, shared_ints)
