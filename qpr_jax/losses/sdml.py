"""Smoothed deep metric learning (SDML): a softmax over distances, with smoothed targets."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Literal

import jax
import jax.numpy as jnp

from qpr_jax.arrays import (
    from_squared,
    is_negative,
    mean_vector,
    paired_distances,
    squared_distances,
)
from qpr_jax.losses.batch import both_ways
from qpr_jax.losses.row_logsumexp import divergences, target_entropy


def sdml_loss(
    queries: jax.Array,
    candidates: jax.Array,
    positives: jax.Array,
    clusters: jax.Array | None = None,
    *,
    smoothing: float = 0.3,
    distance: Literal["ssd", "euc"] = "ssd",
    both: bool = False,
    axis_name: Hashable | None = None,
) -> jax.Array:
    """Return the KL divergence of each row's smoothed targets from the softmax of -D, [n].

    With D_ij the distance of query i and candidate j, and m candidates, the prediction is p_ij =
    softmax_j(-D_ij) and the target t_ij = (1 - smoothing) [j is the positive] + smoothing / m.
    Squared distances never need n x m numbers in memory; their gradient is cheapest where all rows
    have one weight, as in a mean. Forward-mode derivatives are not supported.

    Args:
      queries, candidates, positives, clusters: as in `qpr_jax.losses`. Candidates that a row skips
        do not count for m.
      smoothing: the mass spread evenly over all candidates, 0 to 1; 0 gives plain cross-entropy.
      distance: "ssd", the squared Euclidean one, or "euc", its root.
      both, axis_name: as in `qpr_jax.losses`.

    Example:
      >>> x = jnp.eye(3)
      >>> float(sdml_loss(x, x, jnp.arange(3), smoothing=0.0)[0])  # log(1 + 2 exp(-2))
      0.23954...

    Source:
      Bonadiman, Kumar and Mittal (2019), equations (3) and (4), Figure 2.
    """
    if distance == "ssd":
        # |x_i|^2 changes no softmax of a row, and |y_j|^2 none of a column. The center keeps both
        # small.
        center = mean_vector(candidates)[None]
        rows, columns = queries - center, candidates - center
        biases = -(rows**2).sum(axis=1), -(columns**2).sum(axis=1)
        return divergences(
            2 * rows,
            columns,
            biases,
            positives,
            clusters,
            smoothing,
            both=both,
            axis_name=axis_name,
        )
    loss = functools.partial(_of_all_distances, smoothing, distance)
    if both:
        loss = functools.partial(both_ways, loss, axis_name=axis_name)
    return loss(queries, candidates, positives, clusters)


def _of_all_distances(
    smoothing: float,
    distance: str,
    queries: jax.Array,
    candidates: jax.Array,
    positives: jax.Array,
    clusters: jax.Array | None,
) -> jax.Array:
    """Return `sdml_loss` of one direction, from all distances."""
    logits = -from_squared(squared_distances(queries, candidates), distance)
    positive = -paired_distances(queries, candidates[positives], distance)
    # The cross-entropy compares the positive with the others, not with all: for p close to 1,
    # 1 - p would be lost to rounding.
    hidden = ~is_negative(positives, clusters, len(candidates))
    others = jnp.where(hidden, -jnp.inf, logits)
    cross_entropy = jax.nn.softplus(jax.nn.logsumexp(others, axis=1) - positive)
    count = ((~hidden).sum(axis=1) + 1).astype(positive.dtype)
    mean = (jnp.where(hidden, 0, logits).sum(axis=1) + positive) / count
    return cross_entropy + smoothing * (positive - mean) - target_entropy(count, smoothing)
