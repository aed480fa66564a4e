"""The softmax of SDML and ranking: of each row over all columns, in tiles of rows.

On an accelerator the sums of the exponentials come from the products, with a column of ones, and
the weights of the rows go into vectors: each number of a tile is written once and read twice.

The gradient is computed in the forward pass, while the logits of a tile exist: three matrix
products, 6 N^2 d operations, no array of N x N. It is that of the sum of the rows. Under a mean all
rows have one weight, so the backward pass only scales. Where their weights differ, it computes the
gradient again. Forward-mode derivatives (`jax.jvp`, `jax.jacfwd`, `jax.hessian`) are not supported.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import entr
from jax.typing import ArrayLike

from qpr_jax.arrays import group_ids, in_tiles, join_tiles, matmul_precision, tiling
from qpr_jax.losses.column_logsumexp import both_in_tiles

Groups = tuple[jax.Array, jax.Array] | None


def divergences(
    rows: jax.Array,
    columns: jax.Array,
    biases: tuple[jax.Array, jax.Array],
    positives: jax.Array,
    clusters: jax.Array | None,
    smoothing: float = 0.0,
    *,
    both: bool = False,
    axis_name: Hashable | None = None,
) -> jax.Array:
    """Return KL(targets || softmax of the logits) of each row, with uniformly smoothed targets.

    The logits of a row are rows_i . columns_j + column_bias_j. Of the c columns that a row sees,
    its positive has the target 1 - smoothing + smoothing / c, each other smoothing / c. Small
    values keep their relative precision: they do not come from a difference of large ones.

    Args:
      rows: floating [n, d].
      columns: [m, d], of the same type.
      biases: those of the rows [n], which only the other direction reads, and of the columns [m].
      positives, clusters: as in `qpr_jax.losses`.
      smoothing: from 0 to 1.
      both: return the mean with the divergence of each positive's column over all rows, whose
        logits are rows_i . columns_j + row_bias_i.
      axis_name: with `both`, the mapped axis that the rows are split over.
    """
    row_bias, column_bias = biases
    dots = (rows * columns[positives]).sum(axis=1)
    own_logit = dots + column_bias[positives]
    column_groups = group_ids(clusters, len(columns))
    groups = column_groups[positives], column_groups
    arrays: tuple[jax.Array, ...] = (rows, columns, column_bias, own_logit)
    column_logit = dots + row_bias
    if both:
        arrays += row_bias, column_logit
    settings = matmul_precision(), axis_name, tiling(len(columns), columns.dtype)
    losses = _cross_entropies(settings, arrays, groups)
    if smoothing:
        shown = None if clusters is None else groups
        losses += _row_prior(smoothing, rows, columns, column_bias, own_logit, shown)
        if both:
            losses += _column_prior(
                smoothing, rows, columns, row_bias, column_logit, shown, axis_name=axis_name
            )
    return losses / 2 if both else losses


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cross_entropies(settings: Any, arrays: Any, groups: Any) -> jax.Array:
    return _forward(settings, arrays, groups)[0]


def _forward(settings: Any, arrays: Any, groups: Any) -> tuple[jax.Array, Any]:
    losses, slopes = _in_tiles(settings, jnp.ones_like(arrays[3]), arrays, groups)
    return losses, (arrays, groups, slopes)


def _backward(settings: Any, residuals: Any, weights: jax.Array) -> tuple[Any, None]:
    arrays, groups, slopes = residuals
    least, most = weights.min(), weights.max()
    if len(arrays) > 4 and settings[1] is not None:  # a column's gradient has rows of all devices
        least, most = lax.pmin(least, settings[1]), lax.pmax(most, settings[1])
    gradient = lax.cond(
        least == most,
        lambda: tuple(weights[0] * slope for slope in slopes),
        lambda: _in_tiles(settings, weights, arrays, groups)[1],
    )
    return gradient, None


_cross_entropies.defvjp(_forward, _backward)


def _in_tiles(
    settings: Any, weights: jax.Array, arrays: tuple[jax.Array, ...], groups: Any
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Return the losses [n], and the gradients in `arrays` of their sum, weighted by `weights`."""
    if len(arrays) > 4:
        return both_in_tiles(settings, weights, arrays, groups)
    rows, columns, bias, own_logits = arrays
    precision, _, (tile_rows, kind, fused) = settings
    product = functools.partial(
        jnp.matmul, precision=precision, preferred_element_type=columns.dtype
    )

    def step(sums: Any, tile: Any) -> tuple[Any, Any]:
        column_slopes, bias_slopes = sums
        x, own_logit, group, weight = tile
        # Columns on the first axis: on a CPU the products are up to 30 % faster.
        logits = product(columns.astype(kind), x.T.astype(kind)) + bias[:, None]
        shown = jnp.where(groups[1][:, None] == group[None], -jnp.inf, logits)
        most = shown.max(axis=0)
        most = jnp.where(jnp.isfinite(most), most, 0)  # a row may have no negatives
        share = jnp.exp(shown - most[None]).astype(kind)
        if fused:
            vectors = product(_with_ones(columns).astype(kind).T, share).T
            mass = vectors[:, -1]
        else:
            mass = share.sum(axis=0)
        excess = jnp.log(mass) + most - own_logit
        pull = weight * jax.nn.sigmoid(excess)
        scale = jnp.where(mass == 0, 0, pull / mass)
        if fused:
            row_slopes = scale[:, None] * vectors[:, :-1]
            slopes = product(share, (scale[:, None] * _with_ones(x)).astype(kind))
            sums = column_slopes + slopes[:, :-1], bias_slopes + slopes[:, -1]
        else:
            share *= scale[None]
            row_slopes = product(columns.T, share).T
            sums = column_slopes + product(share, x), bias_slopes + share.sum(axis=1)
        return sums, (jax.nn.softplus(excess), row_slopes, -pull)

    # Rows that fill the last tile have a weight of 0.
    inputs = (rows, own_logits, groups[0], weights)
    tiles = jax.tree.map(lambda array: in_tiles(array, tile_rows), inputs)
    start = jnp.zeros_like(columns), jnp.zeros_like(bias)
    (column_slopes, bias_slopes), of_rows = lax.scan(step, start, tiles)
    losses, row_slopes, own_slopes = (join_tiles(array, len(rows)) for array in of_rows)
    return losses, (row_slopes, column_slopes, bias_slopes, own_slopes)


def _with_ones(vectors: jax.Array) -> jax.Array:
    return jnp.concatenate([vectors, jnp.ones_like(vectors[:, :1])], axis=1)


def _row_prior(
    smoothing: float,
    rows: jax.Array,
    columns: jax.Array,
    bias: jax.Array,
    own_logit: jax.Array,
    groups: Groups,
) -> jax.Array:
    """Return the divergence of rows with smoothed targets less their cross-entropy, [n].

    Args:
      smoothing: the mass spread evenly over all columns that a row sees.
      rows: floating [n, d].
      columns: [m, d].
      bias: [m], of the columns.
      own_logit: [n], of each row's positive.
      groups: ids of rows and columns; a row sees its positive and the columns of other groups.
        None: all.
    """
    count: ArrayLike = len(columns)
    if groups is None:
        mean = (rows * columns.mean(axis=0)[None]).sum(axis=1) + bias.mean()
    else:
        sums, bias_sums, others = _sums_of_others(columns, bias, groups[1], groups[0], len(columns))
        count = others + 1
        mean = ((rows * sums).sum(axis=1) + bias_sums + own_logit) / count
    return smoothing * (own_logit - mean) - target_entropy(count, smoothing)


def _column_prior(
    smoothing: float,
    rows: jax.Array,
    columns: jax.Array,
    bias: jax.Array,
    own_logit: jax.Array,
    groups: Groups,
    *,
    axis_name: Hashable | None,
) -> jax.Array:
    """Return the same of the columns of the rows' positives, over the rows of all devices, [n].

    The arguments are those of `_row_prior`, but `bias` [n] is that of the rows. `axis_name` is the
    mapped axis that the rows are split over.
    """
    n = len(rows)
    first: ArrayLike = 0
    pairs = n
    if axis_name is not None:
        first, pairs = n * lax.axis_index(axis_name), n * lax.axis_size(axis_name)
    count: ArrayLike = pairs
    if groups is None:
        paired = lax.dynamic_slice_in_dim(columns, first, n)
        sums, bias_sum = rows.sum(axis=0), bias.sum()
        if axis_name is not None:
            sums, bias_sum = lax.psum((sums, bias_sum), axis_name)
        mean = ((paired * sums[None]).sum(axis=1) + bias_sum) / count
    else:
        of = groups[1][:pairs]
        sums, bias_sums, others = _sums_of_others(rows, bias, groups[0], of, len(columns))
        totals = (columns[:pairs] * sums).sum(axis=1) + bias_sums, others
        if axis_name is not None:
            totals = lax.psum_scatter(jnp.stack(totals, 1), axis_name, tiled=True).T
        count = totals[1] + 1
        mean = (totals[0] + own_logit) / count
    return smoothing * (own_logit - mean) - target_entropy(count, smoothing)


def _sums_of_others(
    vectors: jax.Array, bias: jax.Array, groups: jax.Array, of: jax.Array, limit: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sum over all groups but one, for each of the groups `of` [n].

    Args:
      vectors: floating [k, d].
      bias: [k].
      groups: int [k], below `limit`, as is `of`.

    Returns:
      The sums of the vectors [n, d] and of the bias [n], and the number of vectors [n].
    """
    both = jnp.concatenate([vectors, bias[:, None], jnp.ones_like(bias)[:, None]], axis=1)
    sums = jax.ops.segment_sum(both, groups, limit)
    others = both.sum(axis=0)[None] - sums[of]
    return others[:, :-2], others[:, -2], others[:, -1]


def target_entropy(count: ArrayLike, smoothing: float) -> jax.Array:
    """Return the entropy of uniformly smoothed targets over `count` columns, in nats."""
    other = smoothing / count
    return entr(1 - smoothing + other) + (count - 1) * entr(other)
