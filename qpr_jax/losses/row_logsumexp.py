"""The softmax of SDML and ranking: of each row over all columns, in tiles of rows.

The gradient is computed in the forward pass, while the logits of a tile exist: three matrix
products, 6 N^2 d operations, no array of N x N. The loss is linear in its result, so the backward
pass only scales. Forward-mode derivatives (`jax.jvp`, `jax.jacfwd`, `jax.hessian`) are not
supported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import entr
from jax.typing import ArrayLike

from qpr_jax.arrays import in_tiles, join_tiles
from qpr_jax.losses.distances import PairBatch, device_mean, gather, non_negatives

# Rows of a tile: few, so that its logits stay in the cache, but enough for fast products. From
# 2**16 columns on fewer, so that the memory of a tile is bounded.
_ROWS = (256, 512)
_CACHED_LOGITS, _MOST_LOGITS = 1 << 20, 1 << 24


class Logits(NamedTuple):
    """The logits of n rows over m columns: l_ij = x_i.y_j + bias_j.

    Attributes:
      rows: x, floating [n, d].
      columns: y, of the same type, [m, d].
      bias: [m].
      positive: l_i, [n], the logit of each row's own column.
      own: int32 [n], that column.
      clusters: int [m], -1 for none; columns of the own column's cluster are no negatives. None:
        all are.
    """

    rows: jax.Array
    columns: jax.Array
    bias: jax.Array
    positive: jax.Array
    own: jax.Array
    clusters: jax.Array | None


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def row_logsumexp(
    logits: Logits, precision: lax.PrecisionLike = "highest", tile_rows: int = 0
) -> jax.Array:
    """Sum over the rows of log(exp(l_i) + sum_j exp(l_ij)) - l_i, with j the negatives of row i.

    Small values keep their relative precision: they do not come from a difference of large ones.

    Args:
      logits: over devices, the columns are those of all, and the rows those of this device.
      precision: of the matrix products, as JAX names it.
      tile_rows: rows of a tile; 0: by size.

    Returns:
      Scalar of the type of the rows; over devices, the sum of this one.
    """
    return _forward(logits, precision, tile_rows)[0]


def _forward(
    logits: Logits, precision: lax.PrecisionLike, tile_rows: int
) -> tuple[jax.Array, Logits]:
    rows, columns, bias, positive, own, clusters = logits
    count = len(rows)
    size = tile_rows or _rows_of_tile(len(columns))
    product = functools.partial(jnp.matmul, precision=precision)

    def step(total: Any, tile: Any) -> tuple[Any, Any]:
        value, column_slopes, bias_slopes = total
        x, own_logit, own_column, live = tile
        # Columns on the first axis: on a CPU the products are up to 30 % faster.
        scores = product(columns, x.T) + bias[:, None]
        hidden = non_negatives(own_column[:, None], len(columns), clusters).T
        scores = jnp.where(hidden, -jnp.inf, scores)
        most = scores.max(axis=0)
        most = jnp.where(jnp.isfinite(most), most, 0)  # a row may have no negatives
        share = jnp.exp(scores - most[None])
        mass = share.sum(axis=0)
        excess = jnp.log(mass) + most - own_logit
        value += jnp.where(live, jax.nn.softplus(excess), 0).sum()
        pull = jnp.where(live, jax.nn.sigmoid(excess), 0)
        share *= jnp.where(mass == 0, 0, pull / mass)[None]
        total = (value, column_slopes + product(share, x), bias_slopes + share.sum(axis=1))
        return total, (product(columns.T, share).T, -pull)

    start = (jnp.zeros_like(positive).sum(), jnp.zeros_like(columns), jnp.zeros_like(bias))
    inputs = (rows, positive, own, jnp.ones(count, bool))
    tiles = jax.tree.map(lambda array: in_tiles(array, size), inputs)
    (value, column_slopes, bias_slopes), slopes = lax.scan(step, start, tiles)
    row_slopes, positive_slopes = (join_tiles(array, count) for array in slopes)
    return value, logits._replace(
        rows=row_slopes, columns=column_slopes, bias=bias_slopes, positive=positive_slopes
    )


def _rows_of_tile(columns: int) -> int:
    fewest, most = _ROWS
    rows = min(max(_CACHED_LOGITS // columns, fewest), most)
    return max(1, min(rows, _MOST_LOGITS // columns))


def _backward(
    precision: lax.PrecisionLike, tile_rows: int, slopes: Logits, weight: jax.Array
) -> tuple[Logits]:
    rows, columns, bias, positive = (weight * slope for slope in slopes[:4])
    return (Logits(rows, columns, bias, positive, None, None),)  # type: ignore[arg-type]


row_logsumexp.defvjp(_forward, _backward)


def divergence_sum(
    logits: Logits, *, smoothing: float, precision: lax.PrecisionLike = "highest"
) -> jax.Array:
    """Sum over the rows of KL(targets || softmax of the logits), with uniformly smoothed targets.

    Of the c columns that a row sees, its own has the target 1 - smoothing + smoothing / c, each
    other smoothing / c. The mean of a row's logits needs only sums of columns.
    """
    value = row_logsumexp(logits, precision)
    if not smoothing:
        return value
    count, mean = _mean_logits(logits)
    return value + (smoothing * (logits.positive - mean) - target_entropy(count, smoothing)).sum()


def _mean_logits(logits: Logits) -> tuple[jax.Array, jax.Array]:
    """The number of columns that each row sees, and the mean of their logits, [n] each."""
    rows, columns, bias, positive, own, clusters = logits
    m = len(columns)
    total = (rows * columns.sum(axis=0)[None]).sum(axis=1) + bias.sum()
    if clusters is None:
        return jnp.full_like(positive, m), total / m
    groups = _groups(clusters)
    group = groups[own]
    sizes, biases, sums = (
        jax.ops.segment_sum(array, groups, m)[group]
        for array in (jnp.ones_like(bias), bias, columns)
    )
    count = m - sizes + 1
    hidden = (rows * sums).sum(axis=1) + biases
    return count, (total - hidden + positive) / count


def _groups(clusters: jax.Array) -> jax.Array:
    """Numbers from 0 for clusters of any ids, int32 [m]; those of -1 get one each."""
    order = jnp.argsort(clusters)
    ids = clusters[order]
    starts = (ids[1:] != ids[:-1]) | (ids[1:] < 0)
    numbers = jnp.pad(starts.cumsum(dtype=jnp.int32), (1, 0))
    return jnp.zeros_like(numbers).at[order].set(numbers)


def target_entropy(count: ArrayLike, smoothing: float) -> jax.Array:
    """The entropy of uniformly smoothed targets over `count` columns, in nats."""
    other = smoothing / count
    return entr(1 - smoothing + other) + (count - 1) * entr(other)


class Direction(NamedTuple):
    """Rows that a softmax is taken for, and the columns that it is over.

    Attributes:
      rows: [n, d], the queries or the paired candidates.
      positives: [n, d], what each is paired with.
      columns: [m, d], of all devices.
      own: int32 [n, 1], the column of each positive.
      clusters: of the columns, or None.
    """

    rows: jax.Array
    positives: jax.Array
    columns: jax.Array
    own: jax.Array
    clusters: jax.Array | None


def mean_loss(
    sum_of_losses: Callable[[Direction], jax.Array],
    batch: PairBatch,
    symmetric: bool,
    axis_name: Hashable | None,
) -> jax.Array:
    """The mean over the queries and, if `symmetric`, over the paired candidates, too."""
    n = len(batch.queries)
    directions = [(batch.queries, batch.candidates[:n], batch.candidates)]
    if symmetric:
        directions.append((batch.candidates[:n], batch.queries, batch.queries))
    loss = jnp.zeros_like(batch.queries).sum()
    for rows, positives, others in directions:
        columns = gather(others, n, axis_name)
        clusters = None if batch.clusters is None else batch.clusters[: len(columns)]
        loss += sum_of_losses(Direction(rows, positives, columns, batch.own, clusters))
    return device_mean(loss / (n * len(directions)), axis_name)
