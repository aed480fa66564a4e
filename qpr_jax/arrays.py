"""Rows of arrays at length 1 and in tiles, and matrix products in half precision."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
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
    """Return the first `count` rows of tiles [tiles, size, ...]: the inverse of `in_tiles`."""
    return tiles.reshape(-1, *tiles.shape[2:])[:count]


def product(
    spec: str, left: jax.Array, right: jax.Array, *, dtype: str, precision: lax.PrecisionLike
) -> jax.Array:
    """Return the product of two float32 arrays, float32.

    Args:
      spec: as of `jnp.einsum`, "nlh,ho->nlo"; each index is in two of the three terms, or in all.
      left: float32; in a mapped function `left` and `right` must vary alike (`lax.pcast`).
      right: float32.
      dtype: "float32", or "bfloat16": the factors of this product, and those of its gradient, are
        rounded to bfloat16, and all sums are float32.
      precision: of float32 products and of their gradients.
    """
    if dtype == "bfloat16":
        return _bfloat16_product(spec, left, right)
    return jnp.einsum(spec, left, right, precision=precision, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _bfloat16_product(spec: str, left: jax.Array, right: jax.Array) -> jax.Array:
    left, right = left.astype(jnp.bfloat16), right.astype(jnp.bfloat16)
    return jnp.einsum(spec, left, right, preferred_element_type=jnp.float32)


def _product_forward(
    spec: str, left: jax.Array, right: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    left, right = left.astype(jnp.bfloat16), right.astype(jnp.bfloat16)
    return _bfloat16_product(spec, left, right), (left, right)


def _product_backward(
    spec: str, factors: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    # JAX's own gradient would multiply the float32 gradient by the bfloat16 factor, in float32.
    left, right = factors
    terms, of_result = spec.split("->")
    of_left, of_right = terms.split(",")
    return (
        _bfloat16_product(f"{of_result},{of_right}->{of_left}", gradient, right),
        _bfloat16_product(f"{of_left},{of_result}->{of_right}", left, gradient),
    )


_bfloat16_product.defvjp(_product_forward, _product_backward)
