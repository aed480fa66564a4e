"""Rows of an array in tiles of equal size, to process a few at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def in_tiles(rows: jax.Array, tile: int) -> jax.Array:
    """Divide rows [n, ...] into the fewest tiles of at most `tile` rows, padded with zeros.

    Returns:
      [tiles, size, ...]; one tile if there are no rows.
    """
    count = len(rows)
    tiles = max(1, -(-count // tile))
    size = -(-count // tiles)
    padding = [(0, tiles * size - count)] + [(0, 0)] * (rows.ndim - 1)
    return jnp.pad(rows, padding).reshape(tiles, size, *rows.shape[1:])


def join_tiles(tiles: jax.Array, count: int) -> jax.Array:
    """The first `count` rows of tiles [tiles, size, ...]: the inverse of `in_tiles`."""
    return tiles.reshape(-1, *tiles.shape[2:])[:count]
