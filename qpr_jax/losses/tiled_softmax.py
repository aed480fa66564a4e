"""The softmax of SDML and ranking in tiles of rows: of rows over columns, or also of columns.

On an accelerator the sums of the exponentials come from the products, with a column of ones, and
the weights of the rows go into vectors: each number of a tile is written once and read twice.

The gradient is computed in the forward pass, while the logits of a tile exist: three matrix
products, 6 N^2 d operations, no array of N x N. It is that of the sum of the rows. Under a mean all
rows have one weight, so the backward pass only scales. Where their weights differ, it computes the
gradient again. Forward-mode derivatives (`jax.jvp`, `jax.jacfwd`, `jax.hessian`) are not supported.

Both directions share their products. A first pass over the tiles has the sums of the exponentials
of each row and of each column, a second the gradients. It computes the products again where they
are too many to keep: 8 N^2 d operations, else 6, where two passes of one direction take 12. Over
devices each has its rows and all columns. The maxima and the sums of the columns are reduced.
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

from qpr_jax.arrays import Tiling, group_ids, in_tiles, join_tiles, matmul_precision, tiling
from qpr_jax.losses.batch import gather

Groups = tuple[jax.Array, jax.Array] | None


def divergences(
    rows: jax.Array,
    columns: jax.Array,
    biases: tuple[jax.Array, jax.Array],
    positives: jax.Array,
    clusters: jax.Array | None,
    smoothing: float,
    *,
    both: bool,
    axis_name: Hashable | None,
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
        return _both_in_tiles(settings, weights, arrays, groups)
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


KEPT = 1 << 24  # products that are kept from the first pass for the second: 64 MiB


def _both_in_tiles(
    settings: tuple[str, Hashable | None, Tiling],
    weights: jax.Array,
    arrays: tuple[jax.Array, ...],
    groups: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Return the sum of both directions' losses [n], and the gradients of their weighted sum.

    Args:
      settings: the precision of the products, the mapped axis that the rows are split over, tiles.
      weights: [n].
      arrays: rows, columns, bias of the columns, logit of each row's positive, bias of the rows,
        logit of each row among those of its positive's column. The gradients are in their order.
      groups: ids of rows and of columns; those of one id are no negatives of each other.
    """
    rows, columns, bias, own_logit, row_bias, column_logit = arrays
    n, m = len(rows), len(columns)
    precision, axis_name, (size, kind, _) = settings
    narrow = columns.astype(kind)
    product = functools.partial(
        jnp.matmul, precision=precision, preferred_element_type=columns.dtype
    )
    split = functools.partial(jax.tree.map, lambda array: in_tiles(array, size))
    tiles = split((rows, row_bias, groups[0], jnp.ones(n, bool)))

    def logits(tile: Any, dots: jax.Array | None) -> tuple[jax.Array, jax.Array, jax.Array]:
        x, x_bias, group, filled = tile
        dots = product(narrow, x.T.astype(kind)) if dots is None else dots
        hidden = groups[1][:, None] == group[None]
        x_bias = jnp.where(filled, x_bias, -jnp.inf)
        of_rows = jnp.where(hidden, -jnp.inf, dots + bias[:, None])
        return dots, of_rows, jnp.where(hidden, -jnp.inf, dots + x_bias[None])

    def add(sums: Any, tile: Any) -> tuple[Any, Any]:
        most, mass = sums
        dots, of_rows, of_columns = logits(tile, None)
        top = jnp.maximum(most, of_columns.max(axis=1))
        mass *= jnp.exp(most - _finite(top))
        mass += jnp.exp(of_columns - _finite(top)[:, None]).sum(axis=1)
        sums_of_rows = jax.nn.logsumexp(of_rows, axis=0)
        return (top, mass), (sums_of_rows, dots if n * m <= KEPT else None)

    zeros = jnp.zeros_like(columns), jnp.zeros_like(bias)
    (most, mass), (row_sums, kept) = lax.scan(add, (zeros[1] - jnp.inf, zeros[1]), tiles)
    column_sums = _over_devices(most, mass, axis_name)
    first = 0 if axis_name is None else n * lax.axis_index(axis_name)
    excess = join_tiles(row_sums, n) - own_logit
    column_excess = lax.dynamic_slice_in_dim(column_sums, first, n) - column_logit
    pull, column_pull = (weights * jax.nn.sigmoid(each) for each in (excess, column_excess))
    pulls = gather(column_pull, n, axis_name)
    pulls = jnp.pad(pulls, (0, m - len(pulls)))  # the others are paired with no row

    def differentiate(sums: Any, tile: Any) -> tuple[Any, Any]:
        column_slopes, bias_slopes = sums
        inputs, dots, row_sum, row_pull = tile
        _, of_rows, of_columns = logits(inputs, dots)
        of_rows = row_pull[None] * jnp.exp(of_rows - _finite(row_sum)[None])
        of_columns = pulls[:, None] * jnp.exp(of_columns - _finite(column_sums)[:, None])
        slope = (of_rows + of_columns).astype(kind)
        x = inputs[0].astype(kind)
        sums = column_slopes + product(slope, x), bias_slopes + of_rows.sum(axis=1)
        return sums, (product(narrow.T, slope).T, of_columns.sum(axis=0))

    inputs = tiles, kept, row_sums, split(pull)
    (column_slopes, bias_slopes), slopes = lax.scan(differentiate, zeros, inputs)
    row_slopes, row_bias_slopes = (join_tiles(array, n) for array in slopes)
    losses = jax.nn.softplus(excess) + jax.nn.softplus(column_excess)
    own_slopes = -pull, row_bias_slopes, -column_pull
    return losses, (row_slopes, column_slopes, bias_slopes, *own_slopes)


def _over_devices(most: jax.Array, mass: jax.Array, axis_name: Hashable | None) -> jax.Array:
    """Return the logarithm of each column's sum over all rows, of those of a device's rows."""
    top = most
    if axis_name is not None:
        top = lax.pmax(most, axis_name)
        mass = lax.psum(mass * jnp.exp(most - _finite(top)), axis_name)
    return jnp.log(mass) + _finite(top)


def _finite(most: jax.Array) -> jax.Array:
    """Replace -inf, which stands for no logits, by 0, so that no difference is NaN."""
    return jnp.where(jnp.isneginf(most), 0, most)
