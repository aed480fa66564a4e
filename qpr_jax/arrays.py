"""Arithmetic of vectors on devices: lengths, distances, tiles, and products in half precision."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike


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


def is_negative(positives: jax.Array, clusters: jax.Array | None, count: int) -> jax.Array:
    """Mask the negatives of each row among `count` candidates: bool [n, count].

    All are but its positive, and those of the cluster of its positive. For `positives` and
    `clusters` see `qpr_jax.losses`.
    """
    mask = positives[:, None] != jnp.arange(count, dtype=positives.dtype)[None]
    if clusters is None:
        return mask
    row_clusters = clusters[positives][:, None]
    return mask & ((row_clusters != clusters[None]) | (row_clusters < 0))


def group_ids(clusters: jax.Array | None, count: int) -> jax.Array:
    """Number the candidates by cluster, each one without a cluster by itself: int32 [count].

    The negatives of a row are then those whose number is not that of its positive.
    """
    if clusters is None:
        return jnp.arange(count, dtype=jnp.int32)
    alone = clusters < 0
    first = jnp.searchsorted(jnp.sort(clusters), clusters).astype(jnp.int32)
    return jnp.where(alone, jnp.cumsum(alone, dtype=jnp.int32) - 1, first)


class Tiling(NamedTuple):
    """How the softmax over many columns is computed on a platform.

    rows: of a tile, whose logits are in memory at a time.
    dtype: of the exponentials between a product and the next.
    fused: take the sums of the exponentials from the products, with a column of ones.
    """

    rows: int
    dtype: DTypeLike
    fused: bool


def tiling(columns: int, dtype: DTypeLike) -> Tiling:
    """Choose by platform how to compute the softmax of numbers of a type over some columns.

    On a CPU, which computes, tiles are small, so that the logits stay in the cache. On an
    accelerator, which reads and writes, they are large, and passes over them are few. A TPU rounds
    the factors of products of the precision "default" to bfloat16 in any case.
    """
    platform = jax.default_backend()
    if platform == "cpu":
        rows = min(max((1 << 20) // columns, 256), 512, (1 << 24) // columns)
        return Tiling(max(1, rows), dtype, False)
    half = platform == "tpu" and matmul_precision() == "default" and dtype == jnp.float32
    rows = max(1, min(4096, (1 << 30) // columns))
    return Tiling(rows, jnp.bfloat16 if half else dtype, True)


def matmul_precision() -> str:
    """Return what `jax.default_matmul_precision` is set to, or "highest"."""
    return jax.config.jax_default_matmul_precision or "highest"  # type: ignore[attr-defined]


def mean_vector(rows: jax.Array) -> jax.Array:
    """Return the mean of the rows, [d], a constant for the gradient.

    Its last bit is dropped: a compiler that fuses x - sum / m in some places, without rounding the
    mean, would give value and gradient different centers.
    """
    kind = jnp.finfo(rows.dtype)
    mean = lax.stop_gradient(rows.mean(axis=0))
    return lax.reduce_precision(mean, kind.nexp, kind.nmant - 1)


def paired_distances(x: jax.Array, y: jax.Array, distance: str) -> jax.Array:
    """Return the distance of row i of x [n, d] and row i of y [n, d], [n]."""
    return from_squared(((x - y) ** 2).sum(axis=1), distance)


def squared_distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return all squared Euclidean distances, [n, m], by a matrix product.

    Those within its rounding error are set to that, without a gradient: their root has a slope.
    """
    # Subtracting one vector from all changes no distance. Without it, the expanded square of a
    # large common offset would lose them to rounding.
    center = mean_vector(y)[None]
    u, v = x - center, y - center
    scale = (u**2).sum(axis=1)[:, None] + (v**2).sum(axis=1)[None]
    expanded = scale - 2 * jnp.matmul(u, v.T, precision=matmul_precision())
    least = lax.stop_gradient(4 * jnp.finfo(scale.dtype).eps * scale)
    return jnp.where(expanded > least, expanded, least)


def from_squared(squared: jax.Array, distance: str) -> jax.Array:
    """Turn squared Euclidean distances into `distance`, "ssd" or "euc"; the gradient at 0 is 0."""
    if distance == "ssd":
        return squared
    zero = squared == 0
    # The inner `where` keeps the infinite slope of the root at 0 out of the gradient.
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squared)))
