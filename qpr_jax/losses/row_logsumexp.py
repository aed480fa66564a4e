"""The softmax of SDML and ranking: of each row over all columns, in tiles of rows.

The gradient is computed in the forward pass, while the logits of a tile exist: three matrix
products, 6 N^2 d operations, no array of N x N. It is that of the sum of the rows. Under a mean all
rows have one weight, so the backward pass only scales. Where their weights differ, it computes the
gradient again. Forward-mode derivatives (`jax.jvp`, `jax.jacfwd`, `jax.hessian`) are not supported.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import entr
from jax.typing import ArrayLike

from qpr_jax.arrays import in_tiles, join_tiles
from qpr_jax.losses.distances import is_negative, matmul_precision

# Rows of a tile: as many as have `logits`, within `fewest` and `most`, but never over `limit`. On a
# CPU few, so that the logits stay in the cache; on an accelerator many, to keep it busy.
_CPU = {"fewest": 256, "most": 512, "logits": 1 << 20, "limit": 1 << 24}
_ACCELERATOR = {"fewest": 1024, "most": 8192, "logits": 1 << 24, "limit": 1 << 28}


def divergences(
    rows: jax.Array,
    columns: jax.Array,
    bias: jax.Array,
    positives: jax.Array,
    clusters: jax.Array | None,
    smoothing: float = 0.0,
) -> jax.Array:
    """Return KL(targets || softmax of the logits) of each row, with uniformly smoothed targets.

    The logits are l_ij = rows_i . columns_j + bias_j. Of the c columns that a row sees, its
    positive has the target 1 - smoothing + smoothing / c, each other smoothing / c. Small values
    keep their relative precision: they do not come from a difference of large ones.

    Args:
      rows: floating [n, d].
      columns: [m, d], of the same type.
      bias: [m], of the same type.
      positives, clusters: as in `qpr_jax.losses`.
      smoothing: from 0 to 1.
    """
    positive_logits = (rows * columns[positives]).sum(axis=1) + bias[positives]
    arrays = rows, columns, bias, positive_logits
    return _divergences(smoothing, matmul_precision(), arrays, positives, clusters)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _divergences(
    smoothing: float, precision: str, arrays: Any, positives: jax.Array, clusters: Any
) -> jax.Array:
    weights = jnp.ones_like(arrays[3])
    return _in_tiles(smoothing, precision, weights, arrays, positives, clusters)[0]


def _forward(smoothing: float, precision: str, *inputs: Any) -> tuple[jax.Array, Any]:
    weights = jnp.ones_like(inputs[0][3])
    losses, slopes = _in_tiles(smoothing, precision, weights, *inputs)
    return losses, (inputs, slopes)


def _backward(
    smoothing: float, precision: str, residuals: Any, weights: jax.Array
) -> tuple[Any, None, None]:
    inputs, slopes = residuals
    gradient = lax.cond(
        (weights == weights[0]).all(),
        lambda: tuple(weights[0] * slope for slope in slopes),
        lambda: _in_tiles(smoothing, precision, weights, *inputs)[1],
    )
    return gradient, None, None


_divergences.defvjp(_forward, _backward)


def _in_tiles(
    smoothing: float,
    precision: str,
    weights: jax.Array,
    arrays: tuple[jax.Array, ...],
    positives: jax.Array,
    clusters: jax.Array | None,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Return the losses [n], and the gradients in `arrays` of their sum, weighted by `weights`."""
    rows, columns, bias, positive_logits = arrays
    product = functools.partial(jnp.matmul, precision=precision)

    def step(sums: Any, tile: Any) -> tuple[Any, Any]:
        column_slopes, bias_slopes = sums
        x, own_logit, positive, weight = tile
        # Columns on the first axis: on a CPU the products are up to 30 % faster.
        logits = product(columns, x.T) + bias[:, None]
        hidden = ~is_negative(positive, clusters, len(columns)).T
        shown = jnp.where(hidden, -jnp.inf, logits)
        most = shown.max(axis=0)
        most = jnp.where(jnp.isfinite(most), most, 0)  # a row may have no negatives
        share = jnp.exp(shown - most[None])
        mass = share.sum(axis=0)
        excess = jnp.log(mass) + most - own_logit
        losses = jax.nn.softplus(excess)
        pull = weight * jax.nn.sigmoid(excess)
        share *= jnp.where(mass == 0, 0, pull / mass)[None]
        if smoothing:
            if clusters is None:  # sums of the columns are enough
                count = jnp.full_like(own_logit, len(columns))
                mean = (x * columns.mean(axis=0)[None]).sum(axis=1) + bias.mean()
            else:
                count, mean = mean_logits(logits, own_logit, hidden, axis=0)
            spread = smoothing * weight
            losses += smoothing * (own_logit - mean) - target_entropy(count, smoothing)
            share -= jnp.where(hidden, 0, (spread / count)[None])
            pull -= spread * (1 - 1 / count)
        sums = column_slopes + product(share, x), bias_slopes + share.sum(axis=1)
        return sums, (losses, product(columns.T, share).T, -pull)

    size = _rows_of_tile(len(columns))
    # Rows that fill the last tile have a weight of 0.
    inputs = (rows, positive_logits, positives, weights)
    tiles = jax.tree.map(lambda array: in_tiles(array, size), inputs)
    start = jnp.zeros_like(columns), jnp.zeros_like(bias)
    (column_slopes, bias_slopes), of_rows = lax.scan(step, start, tiles)
    losses, row_slopes, positive_slopes = (join_tiles(array, len(rows)) for array in of_rows)
    return losses, (row_slopes, column_slopes, bias_slopes, positive_slopes)


def _rows_of_tile(columns: int) -> int:
    tiles = _CPU if jax.default_backend() == "cpu" else _ACCELERATOR
    rows = min(max(tiles["logits"] // columns, tiles["fewest"]), tiles["most"])
    return max(1, min(rows, tiles["limit"] // columns))


def mean_logits(
    logits: jax.Array, positive: jax.Array, hidden: jax.Array, *, axis: int
) -> tuple[jax.Array, jax.Array]:
    """Return the number of columns that each row sees, its positive included, and their mean logit.

    Args:
      logits: [n, m], or [m, n] if `axis` is 0.
      positive: [n], the logit of each row's positive.
      hidden: bool, of the shape of `logits`: what is no negative.
      axis: that of the columns.
    """
    count = ((~hidden).sum(axis=axis) + 1).astype(positive.dtype)
    return count, (jnp.where(hidden, 0, logits).sum(axis=axis) + positive) / count


def target_entropy(count: ArrayLike, smoothing: float) -> jax.Array:
    """Return the entropy of uniformly smoothed targets over `count` columns, in nats."""
    other = smoothing / count
    return entr(1 - smoothing + other) + (count - 1) * entr(other)
