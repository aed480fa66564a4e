"""Shared by the losses of pairs: distances, negatives and matrix products."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike


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
