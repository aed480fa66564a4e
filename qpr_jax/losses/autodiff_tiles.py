"""A sum over the rows of an N x N loss, and its gradient, with few rows in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.tiles import in_tiles, joined

# Numbers of a tile: 32 MiB, of which a few are held at once. Larger tiles leave the cache, smaller
# ones add to the gradient of the candidates too often; so do few rows, in a tile of any size.
_TILE_NUMBERS = 1 << 23
_FEWEST, _MOST = 64, 512
# (rows, shared, row numbers, shared numbers) -> the loss of each row, [t].
RowLosses = Callable[[Any, Any, Any, Any], jax.Array]


def tile_of(tile: int | str | None, rows: int, columns: int, *, by_hand: bool) -> int | None:
    """The rows of a tile, or None for all at once.

    by_hand: whether the gradient in tiles is faster at any size; else few are taken all at once.
    ValueError where `tile` is none of "auto", None and a positive number.
    """
    if tile is None:
        return None
    if tile == "auto":
        if not by_hand and rows * columns <= 4 * _TILE_NUMBERS:
            return None
        return min(max(_TILE_NUMBERS // columns, _FEWEST), _MOST, rows)
    if isinstance(tile, bool) or not isinstance(tile, int) or tile < 1:
        raise ValueError(f'expected `tile` to be "auto", None or 1 and more rows, got {tile!r}')
    return tile


def live_tiles(arrays: tuple[Any, ...], count: int, tile: int) -> tuple[Any, ...]:
    """Trees of arrays [n, ...] in tiles; last, which of the tiles' rows are not filling."""
    return jax.tree.map(lambda array: in_tiles(array, tile), (*arrays, jnp.ones(count, bool)))


def summed_by_tiles(
    losses: RowLosses,
    rows: Any,
    shared: Any,
    row_numbers: Any,
    shared_numbers: Any,
    tile: int,
    axis_name: Hashable | None = None,
) -> jax.Array:
    """The sum of `losses`, and its gradient, in tiles of about `tile` rows.

    The gradient is made in the same pass as the value, while a tile's N columns are at hand, so
    nothing of size n x N is ever kept and nothing is computed twice.

    Args:
      losses: of some rows.
      rows: floating arrays with one entry a row, first axis n.
      shared: floating arrays that every row meets.
      row_numbers: integer arrays like `rows`.
      shared_numbers: integer arrays like `shared`, or None.
      tile: rows of a tile, at least 1; they are evened out, and the last is filled up.
      axis_name: the mapped axis over which all of this differs, if any.
    """
    count = jax.tree.leaves(rows)[0].shape[0]

    def of_tile(rows: Any, shared: Any, row_numbers: Any, shared_numbers: Any, live: Any) -> Any:
        return jnp.where(live, losses(rows, shared, row_numbers, shared_numbers), 0).sum()

    def zero() -> jax.Array:
        none = jnp.zeros(())
        return none if axis_name is None else lax.pcast(none, axis_name, to="varying")

    @jax.custom_vjp
    def total(rows: Any, shared: Any, row_numbers: Any, shared_numbers: Any) -> jax.Array:
        def step(so_far: jax.Array, inputs: Any) -> tuple[jax.Array, None]:
            own_rows, own_numbers, live = inputs
            return so_far + of_tile(own_rows, shared, own_numbers, shared_numbers, live), None

        inputs = live_tiles((rows, row_numbers), count, tile)
        return lax.scan(step, zero(), inputs)[0]

    def forward(rows: Any, shared: Any, row_numbers: Any, shared_numbers: Any) -> Any:
        def step(so_far: Any, inputs: Any) -> Any:
            own_rows, own_numbers, live = inputs
            value, (of_rows, of_shared) = jax.value_and_grad(of_tile, argnums=(0, 1))(
                own_rows, shared, own_numbers, shared_numbers, live
            )
            return jax.tree.map(jnp.add, so_far, (value, of_shared)), of_rows

        start = (zero(), jax.tree.map(jnp.zeros_like, shared))
        inputs = live_tiles((rows, row_numbers), count, tile)
        (value, of_shared), of_rows = lax.scan(step, start, inputs)
        of_rows = jax.tree.map(lambda tiles: joined(tiles, count), of_rows)
        return value, (of_rows, of_shared)

    def backward(gradients: Any, weight: jax.Array) -> Any:
        return *jax.tree.map(lambda gradient: weight * gradient, gradients), None, None

    total.defvjp(forward, backward)
    return total(rows, shared, row_numbers, shared_numbers)
