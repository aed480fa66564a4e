"""Triplet loss: a pair must be closer than its query and a negative, by a margin."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.losses.distances import (
    device_mean,
    non_negatives,
    pair_sides,
    paired_distances,
    require,
    squared_distances,
)


def triplet_loss(
    queries: jax.Array,
    candidates: jax.Array,
    *,
    negatives: str = "random",
    margin: float = 0.5,
    distance: str = "ssd",
    clusters: jax.Array | None = None,
    key: jax.Array | None = None,
    axis_name: Hashable | None = None,
    precision: lax.PrecisionLike = "highest",
) -> jax.Array:
    """Mean over the batch of max(0, d(query, positive) - d(query, negative) + margin).

    The negative is one of the other candidates of the global batch; the choice has no gradient. The
    loss of a row without a negative is 0. The paper takes the sum.

    Args:
      queries, candidates: floating [n, d] and [m, d], m >= n.
      negatives: how to choose the negative: "random", uniformly; "hard", the closest to the
        positive, as in the paper, after Manmatha et al. (2017); "hard_anchor", to the query.
      margin: at least 0.
      distance: "ssd", the squared Euclidean one, or "euc", its root.
      key: decides a random choice, together with the row in the global batch. It must be the same
        on all devices, and a new one at each step.

    For `clusters`, `axis_name` and `precision` see `qpr_jax.losses`. The precision is of the choice
    of hard negatives; the distances of the value come from differences.

    Example:
      >>> x = jnp.eye(3)
      >>> float(triplet_loss(x, x, negatives="hard", margin=2.5))  # 0 - 2 + 2.5
      0.5

    Source:
      Bonadiman, Kumar and Mittal (2019), equation (2).
    """
    choices = ("random", "hard", "hard_anchor")
    require(negatives in choices, f"`negatives` one of {', '.join(choices)}", repr(negatives))
    require(margin >= 0, "`margin` of at least 0", margin)
    (side,) = pair_sides(queries, candidates, clusters, axis_name)
    to_positive = paired_distances(side.rows, side.positives, distance)
    allowed = ~non_negatives(side.own, len(side.columns), side.clusters)
    if negatives != "random":
        target = lax.stop_gradient(side.positives if negatives == "hard" else side.rows)
        closeness = squared_distances(target, lax.stop_gradient(side.columns), precision)
        chosen = jnp.where(allowed, closeness, jnp.inf).argmin(axis=1)
    elif key is None:
        raise ValueError("expected a `key` of random negatives, such as jax.random.key(0)")
    else:  # each row draws by itself, whatever device it is on
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, side.own)
        drawn = jax.vmap(lambda key: jax.random.uniform(key, allowed.shape[1:]))(keys)
        chosen = jnp.where(allowed, drawn, -1).argmax(axis=1)
    to_negative = paired_distances(side.rows, side.columns[chosen], distance)
    losses = jax.nn.relu(to_positive - to_negative + margin)
    return device_mean(jnp.where(allowed.any(axis=1), losses, 0).mean(), axis_name)
