"""What smoothed targets with a uniform prior add to the cross-entropy of a softmax.

The mean of a row's logits needs no logits: sums of the columns are enough, less those of the group
of its positive.
"""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import entr
from jax.typing import ArrayLike

Groups = tuple[jax.Array, jax.Array] | None


def row_prior(
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


def column_prior(
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

    The arguments are those of `row_prior`, but `bias` [n] is that of the rows. `axis_name` is the
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


def mean_logits(
    logits: jax.Array, positive: jax.Array, hidden: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the number of columns that each row sees, its positive included, and their mean logit.

    Args:
      logits: [n, m].
      positive: [n], the logit of each row's positive.
      hidden: bool [n, m]: what is no negative.
    """
    count = ((~hidden).sum(axis=1) + 1).astype(positive.dtype)
    return count, (jnp.where(hidden, 0, logits).sum(axis=1) + positive) / count


def target_entropy(count: ArrayLike, smoothing: float) -> jax.Array:
    """Return the entropy of uniformly smoothed targets over `count` columns, in nats."""
    other = smoothing / count
    return entr(1 - smoothing + other) + (count - 1) * entr(other)
