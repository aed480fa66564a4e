"""The softmax of SDML and ranking: of each row over all columns, in tiles of rows.

The gradient is computed in the forward pass, while the logits of a tile exist: three matrix
products, 6 N^2 d operations, no array of N x N. The loss is linear in its result, so the backward
pass only scales. Forward-mode derivatives (`jax.jvp`, `jax.jacfwd`, `jax.hessian`) are not
supported.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import entr
from jax.typing import ArrayLike

from qpr_jax.arrays import in_tiles, join_tiles
from qpr_jax.losses.distances import non_negatives

# Rows of a tile: as many as have `logits`, within `fewest` and `most`, but never over `limit`. On a
# CPU few, so that the logits stay in the cache; on an accelerator many, to keep it busy.
_CPU = {"fewest": 256, "most": 512, "logits": 1 << 20, "limit": 1 << 24}
_ACCELERATOR = {"fewest": 1024, "most": 8192, "logits": 1 << 24, "limit": 1 << 28}


class Logits(NamedTuple):
    """The logits of n rows over m columns: l_ij = x_i.y_j + bias_j."""

    rows: jax.Array  # x, floating [n, d]
    columns: jax.Array  # y, of the same type, [m, d]; over devices, those of all
    bias: jax.Array  # [m]
    positive: jax.Array  # [n], the logit of each row's own column
    own: jax.Array  # int32 [n], that column
    # int [m], -1 for none; columns of the own column's cluster are no negatives. None: all are.
    clusters: jax.Array | None


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def divergence_sum(
    logits: Logits,
    smoothing: float = 0.0,
    precision: lax.PrecisionLike = "highest",
) -> jax.Array:
    """Sum over the rows of KL(targets || softmax of the logits), with uniformly smoothed targets.

    Of the c columns that a row sees, its own has the target 1 - smoothing + smoothing / c, each
    other smoothing / c. Small values keep their relative precision: they do not come from a
    difference of large ones.
    """
    return _forward(logits, smoothing, precision)[0]


def _forward(
    logits: Logits, smoothing: float, precision: lax.PrecisionLike
) -> tuple[jax.Array, Logits]:
    rows, columns, bias, positive, own, clusters = logits
    size = _rows_of_tile(len(columns))
    product = functools.partial(jnp.matmul, precision=precision)

    def step(total: Any, tile: Any) -> tuple[Any, Any]:
        value, column_slopes, bias_slopes = total
        x, own_logit, own_column, live = tile
        # Columns on the first axis: on a CPU the products are up to 30 % faster.
        scores = product(columns, x.T) + bias[:, None]
        hidden = non_negatives(own_column, len(columns), clusters).T
        shown = jnp.where(hidden, -jnp.inf, scores)
        most = shown.max(axis=0)
        most = jnp.where(jnp.isfinite(most), most, 0)  # a row may have no negatives
        share = jnp.exp(shown - most[None])
        mass = share.sum(axis=0)
        excess = jnp.log(mass) + most - own_logit
        losses = jnp.where(live, jax.nn.softplus(excess), 0)
        pull = jnp.where(live, jax.nn.sigmoid(excess), 0)
        share *= jnp.where(mass == 0, 0, pull / mass)[None]
        if smoothing:
            if clusters is None:  # sums of the columns are enough
                count = jnp.full_like(own_logit, len(columns))
                mean = (x * columns.mean(axis=0)[None]).sum(axis=1) + bias.mean()
            else:
                count, mean = mean_logits(scores, own_logit, hidden, axis=0)
            spread = jnp.where(live, smoothing, 0)
            losses += spread * (own_logit - mean)
            losses -= jnp.where(live, target_entropy(count, smoothing), 0)
            share -= jnp.where(hidden, 0, (spread / count)[None])
            pull -= spread * (1 - 1 / count)
        total = (
            value + losses.sum(),
            column_slopes + product(share, x),
            bias_slopes + share.sum(axis=1),
        )
        return total, (product(columns.T, share).T, -pull)

    start = (jnp.zeros_like(positive).sum(), jnp.zeros_like(columns), jnp.zeros_like(bias))
    inputs = (rows, positive, own, jnp.ones(len(rows), bool))
    tiles = jax.tree.map(lambda array: in_tiles(array, size), inputs)
    (value, column_slopes, bias_slopes), slopes = lax.scan(step, start, tiles)
    row_slopes, positive_slopes = (join_tiles(array, len(rows)) for array in slopes)
    return value, logits._replace(
        rows=row_slopes, columns=column_slopes, bias=bias_slopes, positive=positive_slopes
    )


def _rows_of_tile(columns: int) -> int:
    tiles = _CPU if jax.default_backend() == "cpu" else _ACCELERATOR
    rows = min(max(tiles["logits"] // columns, tiles["fewest"]), tiles["most"])
    return max(1, min(rows, tiles["limit"] // columns))


def _backward(
    smoothing: float,
    precision: lax.PrecisionLike,
    slopes: Logits,
    weight: jax.Array,
) -> tuple[Logits]:
    rows, columns, bias, positive = (weight * slope for slope in slopes[:4])
    return (Logits(rows, columns, bias, positive, None, None),)  # type: ignore[arg-type]


divergence_sum.defvjp(_forward, _backward)


def mean_logits(
    logits: jax.Array, positive: jax.Array, hidden: jax.Array, *, axis: int
) -> tuple[jax.Array, jax.Array]:
    """Return the number of columns that each row sees, its own included, and their mean logit.

    `axis`: that of the columns in `logits` and in `hidden`, the mask of `non_negatives`.
    """
    count = ((~hidden).sum(axis=axis) + 1).astype(positive.dtype)
    return count, (jnp.where(hidden, 0, logits).sum(axis=axis) + positive) / count


def target_entropy(count: ArrayLike, smoothing: float) -> jax.Array:
    """The entropy of uniformly smoothed targets over `count` columns, in nats."""
    other = smoothing / count
    return entr(1 - smoothing + other) + (count - 1) * entr(other)
