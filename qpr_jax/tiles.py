"""Rows of an array in tiles of like size, a few of which are worked on at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def in_tiles(rows: jax.Array, tile: int) -> jax.Array:
    """Rows [n, ...] dealt out evenly to tiles of at most `tile`, the last filled up with zeros.

    Returns:
      [tiles, size, ...]; one tile where there are no rows.
    """
    count = len(rows)
    tiles = max(1, -(-count // tile))
    size = -(-count // tiles)
    filling = [(0, tiles * size - count)] + [(0, 0)] * (rows.ndim - 1)
    return jnp.pad(rows, filling).reshape(tiles, size, *rows.shape[1:])


def joined(tiles: jax.Array, count: int) -> jax.Array:
    """The first `count` rows of tiles [tiles, size, ...], which undoes `in_tiles`."""
    return tiles.reshape(-1, *tiles.shape[2:])[:count]
