"""Triplet loss: a pair must be closer than its query and a negative, by a margin."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.losses.distances import (
    DISTANCES,
    as_floats,
    check_batch,
    check_choice,
    from_squared,
    gather,
    gather_clusters,
    non_negatives,
    own_rows,
    paired_squared_distances,
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
    precision: str | lax.PrecisionLike = "highest",
) -> jax.Array:
    """Mean over the batch of max(0, d(query, positive) - d(query, negative) + margin).

    Row i of the batch is a pair: `queries[i]` is the anchor, `candidates[i]` its positive. The
    negative is one of the other candidates of the global batch; the choice has no gradient. The
    loss of a row without a negative is 0. (The paper takes the sum, this the mean.)

    Args:
      queries: floating [n, d].
      candidates: floating [m, d], m >= n; those from n on are only negatives.
      negatives: how to choose the negative: "random", uniformly; "hard", the closest to the
        positive, as in the paper, after Manmatha et al. (2017); "hard_anchor", the closest to the
        query, the other common meaning of a hard negative.
      margin: at least 0.
      distance: "ssd", the squared Euclidean one, or "euc", its root.
      clusters: integer [m], or [n] if the extra candidates have none: the cluster of each
        candidate and its query, -1 for none; ids fit int32. No candidate of a row's
        cluster is its negative.
      key: decides a random choice, together with the row in the global batch. It must be the same
        on all devices, and a new one at each step.
      axis_name: the mapped axis (for example of `jax.shard_map`) that the batch is split over, as
        in `sdml_loss`. The choice, the value and the gradient do not depend on the devices.
      precision: of the matrix product that hard negatives are chosen by, as in `sdml_loss`. The
        distances of the value come from differences.

    Returns:
      float32 scalar, float64 if the vectors are, at least 0.

    Raises:
      ValueError: an argument has another shape, range or name than stated above, or `negatives`
        is "random" and there is no `key`.

    Example:
      >>> x = jnp.eye(3)
      >>> float(triplet_loss(x, x, negatives="hard", margin=2.5))  # 0 - 2 + 2.5
      0.5

    Source:
      Bonadiman, Kumar and Mittal (2019), equation (2).
    """
    check_batch(queries, candidates, clusters)
    check_choice("negatives", negatives, ("random", "hard", "hard_anchor"))
    check_choice("distance", distance, DISTANCES)
    if not margin >= 0:
        raise ValueError(f"expected `margin` of at least 0, got {margin}")

    n, m = queries.shape[0], candidates.shape[0]
    queries, candidates = as_floats(queries, candidates)
    positives, all_candidates = candidates[:n], gather(candidates, n, axis_name)
    own = own_rows(n, axis_name)
    all_clusters = gather_clusters(clusters, n, m, axis_name)
    allowed = ~non_negatives(own, all_candidates.shape[0], all_clusters)

    if negatives == "random":
        if key is None:
            raise ValueError(
                'expected a `key` with `negatives="random"`, such as jax.random.key(0)'
            )
        chosen = _random(key, own[:, 0], allowed)
    else:
        target = positives if negatives == "hard" else queries
        closeness = squared_distances(
            lax.stop_gradient(target), lax.stop_gradient(all_candidates), precision
        )
        chosen = jnp.where(allowed, closeness, jnp.inf).argmin(axis=1)

    to_positive, to_negative = (
        from_squared(paired_squared_distances(queries, others), distance)
        for others in (positives, all_candidates[chosen])
    )
    losses = jax.nn.relu(to_positive - to_negative + margin)
    loss = jnp.where(allowed.any(axis=1), losses, 0).mean()
    return loss if axis_name is None else lax.pmean(loss, axis_name)


def _random(key: jax.Array, rows: jax.Array, allowed: jax.Array) -> jax.Array:
    """Choose one of the allowed candidates of each row, by key and row, int32 [n]."""
    counts = allowed.sum(axis=1, dtype=jnp.int32)

    def draw(row: jax.Array, count: jax.Array) -> jax.Array:
        return jax.random.randint(jax.random.fold_in(key, row), (), 0, count, jnp.int32)

    drawn = jax.vmap(draw)(rows, counts)  # the k-th of those allowed
    return (allowed.cumsum(axis=1) > drawn[:, None]).argmax(axis=1)
