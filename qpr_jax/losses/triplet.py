"""Triplet loss: a pair must be closer than its query and a negative, by a margin."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.arrays import is_negative, paired_distances, squared_distances


def triplet_loss(
    queries: jax.Array,
    candidates: jax.Array,
    positives: jax.Array,
    clusters: jax.Array | None = None,
    *,
    negatives: Literal["random", "hard", "hard_anchor"] = "random",
    margin: float = 0.5,
    distance: Literal["ssd", "euc"] = "ssd",
    key: jax.Array | None = None,
) -> jax.Array:
    """Return max(0, d(query, positive) - d(query, negative) + margin) of each row, [n].

    The choice of the negative has no gradient. The loss of a row without a negative is 0.

    Args:
      queries, candidates, positives, clusters: as in `qpr_jax.losses`.
      negatives: how to choose the negative: "random", uniformly; "hard", the closest to the
        positive, as in the paper, after Manmatha et al. (2017); "hard_anchor", to the query.
      margin: at least 0.
      distance: "ssd", the squared Euclidean one, or "euc", its root.
      key: decides a random choice, together with the column of the positive. It must be the same
        on all devices, and a new one at each step.

    Example:
      >>> x = jnp.eye(3)
      >>> triplet_loss(x, x, jnp.arange(3), negatives="hard", margin=2.5).tolist()  # 0 - 2 + 2.5
      [0.5, 0.5, 0.5]

    Source:
      Bonadiman, Kumar and Mittal (2019), equation (2), the sum of all rows.
    """
    paired = candidates[positives]
    allowed = is_negative(positives, clusters, len(candidates))
    if negatives == "random":  # each row draws by itself, whatever device it is on
        if key is None:
            raise ValueError("expected a `key` of random negatives, such as jax.random.key(0)")
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, positives)
        closeness = jax.vmap(lambda key: jax.random.uniform(key, allowed.shape[1:]))(keys)
    else:
        target = {"hard": paired, "hard_anchor": queries}[negatives]
        closeness = lax.stop_gradient(squared_distances(target, candidates))
    chosen = jnp.where(allowed, closeness, jnp.inf).argmin(axis=1)
    to_positive = paired_distances(queries, paired, distance)
    to_negative = paired_distances(queries, candidates[chosen], distance)
    losses = jax.nn.relu(to_positive - to_negative + margin)
    return jnp.where(allowed.any(axis=1), losses, 0)
