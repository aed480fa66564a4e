"""The mean of a loss over a batch, which several devices may share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def batch_loss(
    loss: Callable[..., jax.Array],
    queries: jax.Array,
    candidates: jax.Array,
    clusters: jax.Array | None = None,
    *,
    teacher: tuple[jax.Array, jax.Array] | None = None,
    symmetric: bool = False,
    axis_name: Hashable | None = None,
) -> jax.Array:
    """Return the mean of a loss of pairs over a batch: float32 [], or float64 of such vectors.

    Row i of both sides is a pair. All other candidates are negatives; those from n on are paired
    with no query.

    Args:
      loss: as in `qpr_jax.losses`; bind its settings by `functools.partial`.
      queries: floating [n, d].
      candidates: floating [m, d], m >= n.
      clusters: int [m], the cluster of each candidate and its query, -1 for none. Ids fit int32.
      teacher: other vectors of queries and candidates, [n, t] and [m, t]. The loss gets those of
        its rows and columns as `teacher`.
      symmetric: take the mean with the same loss of the n paired candidates against all queries.
        A loss that can compute both directions at once is asked to.
      axis_name: the mapped axis that the batch is split over. The vectors of all devices are
        gathered, so value and gradient do not depend on the number of devices. Take the gradient
        outside the map: inside one with `check_vma=False` it is too large by that number.

    ValueError for shapes that do not fit.

    Example:
      >>> from functools import partial
      >>> from jax.sharding import Mesh, PartitionSpec as P
      >>> from qpr_jax.losses import batch_loss, sdml_loss
      >>> x, loss = jnp.eye(3), partial(sdml_loss, smoothing=0.0)
      >>> value, gradient = jax.value_and_grad(lambda x, y: batch_loss(loss, x, y), (0, 1))(x, x)
      >>> float(value)  # log(1 + 2 exp(-2))
      0.23954...

      The same with a batch that is split over devices:

      >>> mapped = jax.shard_map(
      ...     lambda x, y: batch_loss(loss, x, y, axis_name="data"),
      ...     mesh=Mesh(jax.devices()[:1], ("data",)), in_specs=P("data"), out_specs=P(),
      ... )
      >>> float(mapped(x, x))
      0.23954...
    """
    n, m = len(queries), len(candidates)
    if queries.ndim != 2 or n > m or candidates.shape[1:] != queries.shape[1:]:
        got = f"{queries.shape} and {candidates.shape}"
        raise ValueError(f"expected `queries` [n, d] and `candidates` [m, d], m >= n, got {got}")
    if clusters is not None:
        clusters = jnp.asarray(clusters, jnp.int32)
        if clusters.shape != (m,):
            raise ValueError(f"expected `clusters` [{m}], got {clusters.shape}")
        clusters = gather(clusters, n, axis_name)
    positives = jnp.arange(n, dtype=jnp.int32)
    if axis_name is not None:
        positives += n * lax.axis_index(axis_name)

    queries, candidates = as_floats(queries, candidates)
    options: dict[str, Any] = {}
    if teacher is not None:
        options["teacher"] = teacher[0], gather(teacher[1], n, axis_name)
    if symmetric and {"both", "axis_name"} <= set(inspect.signature(loss).parameters):
        options |= {"both": True, "axis_name": axis_name}
    elif symmetric:
        loss = functools.partial(both_ways, loss, axis_name=axis_name)
    value = loss(queries, gather(candidates, n, axis_name), positives, clusters, **options).mean()
    return value if axis_name is None else lax.pmean(value, axis_name)


def both_ways(
    loss: Callable[..., jax.Array],
    queries: jax.Array,
    candidates: jax.Array,
    positives: jax.Array,
    clusters: jax.Array | None = None,
    *,
    axis_name: Hashable | None = None,
    teacher: tuple[jax.Array, jax.Array] | None = None,
) -> jax.Array:
    """Return the mean of a loss and of that of each positive against the queries of all devices.

    The loss is called twice. The arguments are those of a loss that computes both directions by
    itself: see `qpr_jax.losses`.
    """
    n = len(queries)
    there: dict[str, Any] = {}
    back: dict[str, Any] = {}
    if teacher is not None:
        there["teacher"] = teacher
        back["teacher"] = teacher[1][positives], gather(teacher[0], n, axis_name)
    columns = gather(queries, n, axis_name)
    of_columns = None if clusters is None else clusters[: len(columns)]
    first = loss(queries, candidates, positives, clusters, **there)
    return (first + loss(candidates[positives], columns, positives, of_columns, **back)) / 2


def mean_loss(
    loss: Callable[..., jax.Array], *arrays: jax.Array, axis_name: Hashable | None = None
) -> jax.Array:
    """Return the mean over a batch of a loss whose arrays have a row for each value.

    Such are `contrastive_loss`, `distillation_loss` and `listwise_loss`. The loss gets the rows of
    all devices. For `axis_name` see `batch_loss`.

    Example:
      >>> from qpr_jax.losses import distillation_loss, mean_loss
      >>> float(mean_loss(distillation_loss, jnp.eye(2), jnp.zeros((2, 2))))
      0.5
    """
    value = loss(*(gather(a, len(a), axis_name) for a in as_floats(*arrays))).mean()
    return value if axis_name is None else lax.pmean(value, axis_name)


def as_floats(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Convert floating arrays to their common type, or to float32 if that is more precise."""
    arrays = tuple(map(jnp.asarray, arrays))
    floats = [a.dtype for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    kind = jnp.result_type(jnp.float32, *floats)
    return tuple(a.astype(kind) if a.dtype in floats else a for a in arrays)


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
