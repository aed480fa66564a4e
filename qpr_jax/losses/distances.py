"""Shared by the losses: checks, the layout of a batch over devices, and distances."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Side(NamedTuple):
    """Rows of a batch, and the columns that each of them is compared with."""

    rows: jax.Array  # floating [n, d]
    positives: jax.Array  # [n, d], what each row is paired with
    columns: jax.Array  # [m, d], of all devices, in the order of `gather`
    own: jax.Array  # int32 [n], the column of each row's pair
    clusters: jax.Array | None  # int32 [m], of the columns; None: every other is a negative


def require(holds: bool, expected: str, got: object) -> None:
    """Raise ValueError unless an argument is what is expected."""
    if not holds:
        raise ValueError(f"expected {expected}, got {got}")


def pair_sides(
    queries: jax.Array,
    candidates: jax.Array,
    clusters: jax.Array | None,
    axis_name: Hashable | None,
    *,
    symmetric: bool = False,
) -> list[Side]:
    """Check the arrays of a loss of pairs, and lay out queries against candidates.

    If `symmetric`, also the n paired candidates against all queries.
    """
    matrices = (queries.ndim, candidates.ndim) == (2, 2) and 0 not in queries.shape
    require(
        matrices and queries.shape[1] == candidates.shape[1] and len(queries) <= len(candidates),
        "`queries` and `candidates` of one non-empty [n, d], or [n, d] and [m, d] with m > n",
        f"{queries.shape} and {candidates.shape}; row i of both is a pair",
    )
    n = len(queries)
    if clusters is not None:
        clusters = gather(_cluster_ids(clusters, len(candidates)), n, axis_name)
    queries, candidates = as_floats(queries, candidates)
    own, paired = jnp.arange(n, dtype=jnp.int32), candidates[:n]
    if axis_name is not None:
        own += lax.axis_index(axis_name) * n
    sides = [Side(queries, paired, gather(candidates, n, axis_name), own, clusters)]
    if symmetric:
        sides.append(Side(paired, queries, gather(queries, n, axis_name), own, clusters))
    return sides


def mean_loss(
    sum_of_losses: Callable[[Side], jax.Array], sides: list[Side], axis_name: Hashable | None
) -> jax.Array:
    """The mean over the rows of all devices, and over the sides."""
    losses = [sum_of_losses(side) / len(side.rows) for side in sides]
    return device_mean(jnp.stack(losses).mean(), axis_name)


def _cluster_ids(clusters: Any, count: int) -> jax.Array:
    # A NumPy array is looked at before JAX cuts it to 32 bits.
    ids = clusters if isinstance(clusters, jax.Array) else np.asarray(clusters)
    cut = isinstance(ids, np.ndarray) and (ids != ids.astype(np.int32)).any()
    require(
        ids.shape == (count,) and ids.dtype.kind in "iu" and not cut,
        f"`clusters`, [{count}] integers that fit int32",
        f"{ids.dtype} {ids.shape}; number the clusters 0, 1, 2, ...; -1 is none",
    )
    return jnp.asarray(ids, jnp.int32)


def as_floats(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Convert to the common floating type, or float32 if that is more precise."""
    kind = jnp.promote_types(jnp.result_type(*arrays), jnp.float32)
    return tuple(jnp.asarray(array, kind) for array in arrays)


def gather(rows: jax.Array, pairs: int, axis_name: Hashable | None) -> jax.Array:
    """Gather the rows of all devices: the first `pairs` of each, then the extra rows of each.

    So row i of the global batch is pair i, and the order is the same as on one device.
    """
    if axis_name is None:
        return rows
    paired = lax.all_gather(rows[:pairs], axis_name, tiled=True)
    if len(rows) == pairs:
        return paired
    return jnp.concatenate([paired, lax.all_gather(rows[pairs:], axis_name, tiled=True)])


def device_mean(loss: jax.Array, axis_name: Hashable | None) -> jax.Array:
    """The mean of the losses of all devices."""
    return loss if axis_name is None else lax.pmean(loss, axis_name)


def non_negatives(own: jax.Array, count: int, clusters: jax.Array | None) -> jax.Array:
    """Mask the first candidates that are no negatives of a row: its own, and those of its cluster.

    `own` and `clusters` are those of a `Side`. Returns bool [n, count].
    """
    mask = own[:, None] == jnp.arange(count, dtype=own.dtype)[None]
    if clusters is None:
        return mask
    row_clusters = clusters[own][:, None]
    return mask | ((row_clusters == clusters[None, :count]) & (row_clusters >= 0))


def mean_vector(rows: jax.Array) -> jax.Array:
    """The mean of the rows, [d], a constant for the gradient.

    Its last bit is dropped: a compiler that fuses x - sum / m in some places, without rounding the
    mean, would give value and gradient different centers.
    """
    kind = jnp.finfo(rows.dtype)
    mean = lax.stop_gradient(rows.mean(axis=0))
    return lax.reduce_precision(mean, kind.nexp, kind.nmant - 1)


def paired_distances(x: jax.Array, y: jax.Array, distance: str) -> jax.Array:
    """The distance of row i of x [n, d] and row i of y [n, d], [n]."""
    return from_squared(((x - y) ** 2).sum(axis=1), distance)


def squared_distances(
    x: jax.Array, y: jax.Array, precision: lax.PrecisionLike = "highest"
) -> jax.Array:
    """All squared Euclidean distances, [n, m], by a matrix product.

    Those within its rounding error are set to that, without a gradient: their root has a slope.
    """
    # Subtracting one vector from all changes no distance. Without it, the expanded square of a
    # large common offset would lose them to rounding.
    center = mean_vector(y)[None]
    u, v = x - center, y - center
    scale = (u**2).sum(axis=1)[:, None] + (v**2).sum(axis=1)[None]
    expanded = scale - 2 * jnp.matmul(u, v.T, precision=precision)
    least = lax.stop_gradient(4 * jnp.finfo(scale.dtype).eps * scale)
    return jnp.where(expanded > least, expanded, least)


def from_squared(squared: jax.Array, distance: str) -> jax.Array:
    """Turn squared Euclidean distances into `distance`, "ssd" or "euc"; the gradient at 0 is 0."""
    require(distance in ("ssd", "euc"), "`distance` ssd or euc", repr(distance))
    if distance == "ssd":
        return squared
    zero = squared == 0
    # The inner `where` keeps the infinite slope of the root at 0 out of the gradient.
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squared)))
