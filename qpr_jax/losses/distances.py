"""Shared by the losses: checks, the layout of a batch over devices, and distances."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def pair_batch(
    queries: jax.Array,
    candidates: jax.Array,
    clusters: jax.Array | None,
    axis_name: Hashable | None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Check the arrays of a loss of pairs, and find their place in the global batch.

    Returns:
      Queries, floating [n, d]; candidates [m, d]; the row of each pair in the global batch, int32
      [n]; and the clusters of the candidates of all devices in the order of `gather`, int32 [M].
    """
    if (
        (queries.ndim, candidates.ndim) != (2, 2)
        or 0 in queries.shape
        or queries.shape[1] != candidates.shape[1]
        or len(queries) > len(candidates)
    ):
        raise ValueError(
            "expected `queries` and `candidates` of one non-empty [n, d], or [n, d] and [m, d] "
            f"with m > n, got {queries.shape} and {candidates.shape}; row i of both is a pair"
        )
    n = len(queries)
    if clusters is not None:
        clusters = gather(_cluster_ids(clusters, len(candidates)), n, axis_name)
    queries, candidates = as_floats(queries, candidates)
    return queries, candidates, own_rows(n, axis_name), clusters


def _cluster_ids(clusters: Any, count: int) -> jax.Array:
    # A NumPy array is looked at before JAX cuts it to 32 bits.
    ids = clusters if isinstance(clusters, jax.Array) else np.asarray(clusters)
    cut = isinstance(ids, np.ndarray) and (ids != ids.astype(np.int32)).any()
    if ids.shape != (count,) or ids.dtype.kind not in "iu" or cut:
        raise ValueError(
            f"expected `clusters`, [{count}] integers that fit int32, got {ids.dtype} {ids.shape}; "
            "`qpr_jax.data.clusters.dense_clusters` numbers any ids"
        )
    return jnp.asarray(ids, jnp.int32)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of the choices."""
    if value not in choices:
        raise ValueError(f"expected `{name}` to be one of {', '.join(choices)}, got {value!r}")


def check_smoothing(smoothing: float) -> None:
    """Raise ValueError unless it is a share."""
    if not 0 <= smoothing <= 1:
        raise ValueError(f"expected `smoothing` from 0 to 1, got {smoothing}")


def as_floats(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Convert to the common floating type, or float32 if that is more precise."""
    kind = jnp.promote_types(jnp.result_type(*arrays), jnp.float32)
    return tuple(jnp.asarray(array, kind) for array in arrays)


def own_rows(pairs: int, axis_name: Hashable | None) -> jax.Array:
    """The row of each of this device's pairs in the global batch, int32 [n]."""
    own = jnp.arange(pairs, dtype=jnp.int32)
    return own if axis_name is None else own + lax.axis_index(axis_name) * pairs


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

    `own` and `clusters` are those of `pair_batch`. Returns bool [n, count].
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
    check_choice("distance", distance, ("ssd", "euc"))
    if distance == "ssd":
        return squared
    zero = squared == 0
    # The inner `where` keeps the infinite slope of the root at 0 out of the gradient.
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squared)))
