"""What the losses share: a batch's layout over devices, its masks, and accurate distances."""

from __future__ import annotations

import functools
from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax

# |x|^2 + |y|^2 - 2 x.y is rounded to some 3e-7 of |x|^2 + |y|^2. Where it is less than this share
# of that sum, more than 5e-6 of it could be rounding: it is taken from x - y.
NEAR = 1 / 16


def check_batch(queries: jax.Array, candidates: jax.Array, clusters: jax.Array | None) -> None:
    """Raises a ValueError unless these make a batch of pairs."""
    n, m = queries.shape[:1], candidates.shape[:1]
    if (
        (queries.ndim, candidates.ndim) != (2, 2)
        or 0 in queries.shape
        or queries.shape[1] != candidates.shape[1]
        or n > m
    ):
        raise ValueError(
            "expected `queries` and `candidates` of one non-empty [n, d], or [n, d] and [m, d] "
            f"with m > n, got {queries.shape} and {candidates.shape}; row i of both is a pair"
        )
    if clusters is not None and (
        clusters.shape not in (n, m) or not jnp.issubdtype(clusters.dtype, jnp.integer)
    ):
        raise ValueError(
            f"expected integer `clusters`, one of each candidate {m} or of each query {n}, got "
            f"{clusters.dtype} {clusters.shape}"
        )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises a ValueError unless `value` is one of the choices."""
    if value not in choices:
        raise ValueError(f"expected `{name}` to be one of {', '.join(choices)}, got {value!r}")


def own_rows(pairs: int, axis_name: Hashable | None) -> jax.Array:
    """The place of each of this device's pairs in the global batch, int32 [n, 1]."""
    own = jnp.arange(pairs)[:, None]
    if axis_name is not None:
        own += lax.axis_index(axis_name) * pairs
    return own


def gather(rows: jax.Array, pairs: int, axis_name: Hashable | None) -> jax.Array:
    """The rows of all devices: first the `pairs` of each, then what each has beyond them.

    So row i of the global batch is pair i, and the order is that of one device.
    """
    if axis_name is None:
        return rows
    paired = lax.all_gather(rows[:pairs], axis_name, tiled=True)
    if rows.shape[0] == pairs:
        return paired
    return jnp.concatenate([paired, lax.all_gather(rows[pairs:], axis_name, tiled=True)])


def gather_clusters(
    clusters: jax.Array | None, pairs: int, count: int, axis_name: Hashable | None
) -> jax.Array | None:
    """The cluster of every candidate, in `gather`'s order; -1 for one that was given none."""
    if clusters is None:
        return None
    none = jnp.full(count - clusters.shape[0], -1, jnp.int32)
    return gather(jnp.concatenate([clusters.astype(jnp.int32), none]), pairs, axis_name)


def left_out(own: jax.Array, count: int, clusters: jax.Array | None) -> jax.Array:
    """Which candidates are no negatives of a row: its own, and those of its cluster.

    Args:
      own: int32 [n, 1], the rows' places, as of `own_rows`.
      count: how many candidates there are, N.
      clusters: int32 [N] or more, as of `gather_clusters`.

    Returns:
      bool [n, N].
    """
    mask = own == jnp.arange(count)[None]
    if clusters is None:
        return mask
    of_row = clusters[own]
    return mask | ((of_row == clusters[None, :count]) & (of_row >= 0))


def mean_vector(rows: jax.Array) -> jax.Array:
    """The mean of the rows, a constant [d], the same number wherever it is used.

    Its last bit is dropped. Without that a compiler may make x - sum / m one operation in some
    places, which never rounds the mean, and round it in others: value and gradient would then be
    centred differently, by what rounding does to a large mean.
    """
    return lax.reduce_precision(lax.stop_gradient(rows.mean(axis=0)), 8, 22)


def unit_vectors(rows: jax.Array) -> jax.Array:
    """Each of the rows [n, d] at length 1; one of zeros stays, and its gradient is 0."""
    squares = (rows**2).sum(axis=1, keepdims=True)
    zero = squares == 0
    # The inner choice keeps the infinite slope of the root at 0 out of the gradient.
    return jnp.where(zero, 0, rows / jnp.sqrt(jnp.where(zero, 1, squares)))


def products(left: jax.Array, right: jax.Array, precision: lax.PrecisionLike) -> jax.Array:
    """All dot products of the rows of left [n, d] and right [m, d], float32 [n, m].

    As sums of short sums, which are rounded half as much as long ones; where there are many, of
    fewer, since each costs a pass over the result.
    """
    length = 64 if len(left) * len(right) < 1 << 22 else 160
    return functools.reduce(
        jnp.add,
        (
            jnp.matmul(left[:, k : k + length], right[:, k : k + length].T, precision=precision)
            for k in range(0, left.shape[1], length)
        ),
    )


def paired_squared_distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """The squared Euclidean distance of each row of x [n, d] and the same row of y, [n]."""
    return ((x - y) ** 2).sum(axis=1)


def squared_distances(
    x: jax.Array, y: jax.Array, precision: lax.PrecisionLike = lax.Precision.HIGHEST
) -> jax.Array:
    """All squared Euclidean distances, each within 1e-5 of itself, however small.

    Most come from a matrix product. Those in which rounding would show, since the two vectors lie
    close together, are taken from their difference: a list of them while there are few, row after
    row of all otherwise. Nothing of size n x m x d is built.

    Args:
      x: float32 [n, d].
      y: float32 [m, d].
      precision: of the matrix product.

    Returns:
      float32 [n, m], at least 0. The gradient is as accurate.
    """
    # Distances do not change when one vector is subtracted from all; without it a common offset
    # would drown them when the square is expanded.
    centre = mean_vector(y)[None]
    u, v = x - centre, y - centre
    scale = (u**2).sum(axis=1)[:, None] + (v**2).sum(axis=1)[None]
    expanded = scale - 2 * products(u, v, precision)
    near = expanded < NEAR * scale
    rows, room = x.shape[0], 4 * x.shape[0] + 64

    def few(x: jax.Array, y: jax.Array, expanded: jax.Array, near: jax.Array) -> jax.Array:
        i, j = jnp.nonzero(near, size=room, fill_value=rows)  # row `rows` is none, and dropped
        exact = paired_squared_distances(x.at[i].get(mode="clip"), y.at[j].get(mode="clip"))
        return expanded.at[i, j].set(exact, mode="drop")

    def many(x: jax.Array, y: jax.Array, expanded: jax.Array, near: jax.Array) -> jax.Array:
        @jax.checkpoint  # else the differences of all rows would be kept for the gradient
        def of_row(row: jax.Array, y: jax.Array) -> jax.Array:
            return paired_squared_distances(row[None], y)

        return lax.map(lambda row: of_row(row, y), x)

    return lax.cond(near.sum() <= room, few, many, x, y, expanded, near)


def from_squared(squared: jax.Array, distance: str) -> jax.Array:
    """The distance of that name, of a squared Euclidean one; its gradient at 0 is 0."""
    if distance == "ssd":
        return squared
    zero = squared == 0
    # The inner choice keeps the infinite slope of the root at 0 out of the gradient.
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squared)))
