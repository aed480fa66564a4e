"""Shared by the losses: checks, the layout of a batch over devices, and exact distances."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qpr_jax.arrays import in_tiles, join_tiles

# The rounding error of |x|^2 + |y|^2 - 2 x.y is about 3e-7 of |x|^2 + |y|^2. Below this share of
# that sum more than 5e-6 of the result could be rounding, so it is computed from x - y.
_NEAR = 1 / 16
# Scores of losses without a gradient by hand that are held at once, 64 MiB an array.
_DENSE_SCORES = 1 << 24

DISTANCES = ("ssd", "euc")  # the squared Euclidean distance, and its root


class PairBatch(NamedTuple):
    """A batch of pairs, and its place in the global batch.

    Attributes:
      queries: floating [n, d].
      candidates: floating [m, d].
      own: int32 [n, 1], the row of each pair in the global batch.
      clusters: int32 [M], of the candidates of all devices in the order of `gather`; -1: none.
    """

    queries: jax.Array
    candidates: jax.Array
    own: jax.Array
    clusters: jax.Array | None


def pair_batch(
    queries: jax.Array,
    candidates: jax.Array,
    clusters: jax.Array | None,
    axis_name: Hashable | None,
) -> PairBatch:
    """Check the arrays of a loss of pairs, and lay them out."""
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
    own = own_rows(len(queries), axis_name)
    if clusters is not None:
        _check_clusters(clusters, n, m)
        ids = jnp.asarray(clusters, jnp.int32)
        none = jnp.full(len(candidates) - len(ids), -1, jnp.int32)
        clusters = gather(jnp.concatenate([ids, none]), len(queries), axis_name)
    queries, candidates = as_floats(queries, candidates)
    return PairBatch(queries, candidates, own, clusters)


def _check_clusters(clusters: Any, n: tuple[int, ...], m: tuple[int, ...]) -> None:
    # A NumPy array is looked at before JAX cuts it to 32 bits.
    ids = clusters if isinstance(clusters, jax.Array) else np.asarray(clusters)
    if ids.shape not in (n, m) or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"expected integer `clusters`, one of each candidate {m} or of each query {n}, got "
            f"{ids.dtype} {ids.shape}"
        )
    if isinstance(ids, np.ndarray) and (ids != ids.astype(np.int32)).any():
        raise ValueError(
            f"expected `clusters` that fit int32, got {ids.dtype} from {ids.min()} to {ids.max()}; "
            "number them with `qpr_jax.data.clusters.dense_clusters`, which keeps -1"
        )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of the choices."""
    if value not in choices:
        raise ValueError(f"expected `{name}` to be one of {', '.join(choices)}, got {value!r}")


def check_smoothing(smoothing: float) -> None:
    """Raise ValueError unless `smoothing` is a share."""
    if not 0 <= smoothing <= 1:
        raise ValueError(f"expected `smoothing` from 0 to 1, got {smoothing}")


def as_floats(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Convert to the common floating type, or float32 if that is more precise."""
    kind = jnp.result_type(*arrays)
    if not jnp.issubdtype(kind, jnp.floating):
        kind = jnp.result_type(float)
    kind = jnp.promote_types(kind, jnp.float32)
    return tuple(jnp.asarray(array, kind) for array in arrays)


def own_rows(pairs: int, axis_name: Hashable | None) -> jax.Array:
    """The row of each of this device's pairs in the global batch, int32 [n, 1]."""
    own = jnp.arange(pairs, dtype=jnp.int32)[:, None]
    if axis_name is not None:
        own += lax.axis_index(axis_name) * pairs
    return own


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
    """Mask the candidates that are no negatives of a row: its own, and those of its cluster.

    `own` and `clusters` are those of `PairBatch`; the first `count` candidates: bool [n, count].
    """
    mask = own == jnp.arange(count, dtype=own.dtype)[None]
    if clusters is None:
        return mask
    row_clusters = clusters[own]
    return mask | ((row_clusters == clusters[None, :count]) & (row_clusters >= 0))


def mean_vector(rows: jax.Array) -> jax.Array:
    """The mean of the rows, [d], a constant for the gradient.

    Its last bit is dropped. Otherwise a compiler may fuse x - sum / m in some places, without
    rounding the mean, and not in others. Value and gradient would then have different centers,
    which matters if the mean is large.
    """
    kind = jnp.finfo(rows.dtype)
    mean = lax.stop_gradient(rows.mean(axis=0))
    return lax.reduce_precision(mean, kind.nexp, kind.nmant - 1)


def map_rows(
    losses: Callable[[Any], jax.Array], rows: Any, columns: int, max_scores: int = _DENSE_SCORES
) -> jax.Array:
    """The losses of all rows, [n]; in tiles, if rows times columns are more than `max_scores`.

    `losses` maps a tree of arrays [t, ...] to the losses of these rows, [t]. What a tile computes
    is computed again for the gradient.
    """
    count = len(jax.tree.leaves(rows)[0])
    if count * columns <= max_scores:
        return losses(rows)
    size = max(1, max_scores // columns)
    tiles = jax.tree.map(lambda array: in_tiles(array, size), rows)
    return join_tiles(lax.map(jax.checkpoint(losses), tiles), count)


def paired_squared_distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """The squared Euclidean distance of row i of x [n, d] and row i of y [n, d], [n]."""
    return ((x - y) ** 2).sum(axis=1)


def squared_distances(
    x: jax.Array, y: jax.Array, precision: lax.PrecisionLike = "highest"
) -> jax.Array:
    """All squared Euclidean distances, [n, m], with a relative error of at most 1e-5.

    Most come from a matrix product. If two vectors are so close that rounding would matter, their
    distance is computed from their difference: for a list of them while they are few, else for all
    pairs, row by row. The gradient is as accurate. No array of n x m x d is built.
    """
    # Subtracting one vector from all changes no distance. Without it, the expanded square of a
    # large common offset would lose them to rounding.
    center = mean_vector(y)[None]
    u, v = x - center, y - center
    scale = (u**2).sum(axis=1)[:, None] + (v**2).sum(axis=1)[None]
    expanded = scale - 2 * jnp.matmul(u, v.T, precision=precision)
    near = expanded < _NEAR * scale
    rows, room = x.shape[0], 4 * x.shape[0] + 64

    def few(x: jax.Array, y: jax.Array, expanded: jax.Array, near: jax.Array) -> jax.Array:
        # Padded with row `rows`, which `mode="drop"` ignores.
        i, j = jnp.nonzero(near, size=room, fill_value=rows)
        exact = paired_squared_distances(x.at[i].get(mode="clip"), y.at[j].get(mode="clip"))
        return expanded.at[i, j].set(exact, mode="drop")

    def many(x: jax.Array, y: jax.Array, expanded: jax.Array, near: jax.Array) -> jax.Array:
        @jax.checkpoint  # else the differences of all rows would be kept for the gradient
        def row_distances(row: jax.Array, y: jax.Array) -> jax.Array:
            return paired_squared_distances(row[None], y)

        return lax.map(lambda row: row_distances(row, y), x)

    return lax.cond(near.sum() <= room, few, many, x, y, expanded, near)


def from_squared(squared: jax.Array, distance: str) -> jax.Array:
    """Turn squared Euclidean distances into `distance`, "ssd" or "euc"; the gradient at 0 is 0."""
    if distance == "ssd":
        return squared
    zero = squared == 0
    # The inner `where` keeps the infinite slope of the root at 0 out of the gradient.
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squared)))
