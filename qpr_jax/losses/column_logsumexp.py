"""The softmax of rows over columns and of columns over rows, from one matrix product.

The first pass over tiles of rows has the sums of the exponentials of each row and of each column,
the second the gradients. It computes the products again where they are too many to keep:
8 N^2 d operations, else 6, where two passes of `row_logsumexp` take 12. Over devices each
has its rows and all columns. The maxima and the sums of the columns are reduced over them.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.arrays import Tiling, in_tiles, join_tiles
from qpr_jax.losses.batch import gather

KEPT = 1 << 24  # products that are kept from the first pass for the second: 64 MiB


def both_in_tiles(
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
