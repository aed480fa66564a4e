"""Rows of arrays at length 1, and in tiles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def unit_vectors(rows: jax.Array) -> jax.Array:
    """Scale each of the rows [n, d] to length 1; a row of zeros stays, with a gradient of 0.

    Rows are first divided by a power of two near their largest entry. No square is then too large
    or too small for its type, and nothing is rounded. The result does not depend on the divisor,
    so that is a constant for the gradient.
    """
    kind = jnp.finfo(rows.dtype)
    largest = lax.stop_gradient(jnp.abs(rows).max(axis=1, keepdims=True))
    # Rounded to no bit of the mantissa. A quarter, so that neither it nor its inverse leaves the
    # range of normal numbers where the largest entry is near its end.
    power = lax.reduce_precision(largest / 4, kind.nexp, 0)
    zero = power == 0
    scaled = rows / jnp.where(zero, 1, power)
    # The inner `where` keeps the infinite slope of the root at 0 out of the gradient.
    squares = jnp.where(zero, 1, (scaled**2).sum(axis=1, keepdims=True))
    return jnp.where(zero, 0, scaled / jnp.sqrt(squares))


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Scale the rows of a NumPy array [n, d] to length 1, like `unit_vectors`."""
    _, exponents = np.frexp(np.abs(rows).max(axis=1, keepdims=True))
    scaled = np.ldexp(rows, -exponents)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    return scaled / np.where(lengths == 0, 1, lengths).astype(rows.dtype)


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
