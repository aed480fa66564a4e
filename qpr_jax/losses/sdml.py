"""Smoothed deep metric learning (SDML): a softmax over distances, with smoothed targets."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import entr

from qpr_jax.losses.distances import (
    Side,
    from_squared,
    mean_loss,
    mean_vector,
    non_negatives,
    pair_sides,
    paired_distances,
    require,
    squared_distances,
)
from qpr_jax.losses.row_logsumexp import Logits, divergence_sum, mean_logits, target_entropy


def sdml_loss(
    queries: jax.Array,
    candidates: jax.Array,
    *,
    smoothing: float = 0.3,
    distance: str = "ssd",
    prior: str = "uniform",
    clusters: jax.Array | None = None,
    symmetric: bool = False,
    axis_name: Hashable | None = None,
    precision: lax.PrecisionLike = "highest",
) -> jax.Array:
    """Mean over the batch of the KL divergence of the smoothed targets from the softmax of -D.

    With D_ij the distance of query i and candidate j, and N candidates of all devices, the
    prediction is p_ij = softmax_j(-D_ij) and the target t_ij = (1 - smoothing) [i = j] +
    smoothing q_ij, with q the prior. Squared distances with the uniform prior never need N x N
    numbers in memory. Forward-mode derivatives are not supported.

    Args:
      queries, candidates: floating [n, d] and [m, d], m >= n.
      smoothing: the mass spread by the prior, 0 to 1; 0 gives plain cross-entropy.
      distance: "ssd", the squared Euclidean one, or "euc", its root.
      prior: "uniform", 1/N on every candidate, including the row's own, or "distance", the softmax
        of -D over the negatives, without a gradient (all on the own candidate if there is no
        negative).
      symmetric: take the mean of this loss and that of the n paired candidates against all queries.

    For `clusters`, `axis_name` and `precision` see `qpr_jax.losses`. Candidates that a row skips
    count neither for the prior nor for N.

    Example:
      >>> x = jnp.eye(3)
      >>> float(sdml_loss(x, x, smoothing=0.0))  # log(1 + 2 exp(-2))
      0.23954...

    Source:
      Bonadiman, Kumar and Mittal (2019), equations (3) and (4), Figure 2.
    """
    require(prior in ("uniform", "distance"), "`prior` uniform or distance", repr(prior))
    require(0 <= smoothing <= 1, "`smoothing` from 0 to 1", smoothing)
    sides = pair_sides(queries, candidates, clusters, axis_name, symmetric=symmetric)
    center = mean_vector(sides[0].columns)[None]

    def divergences(side: Side) -> jax.Array:
        if distance == "ssd" and prior == "uniform":
            return _sum_by_products(side, center, smoothing, precision)
        return _dense_sum(side, smoothing, distance, prior, precision)

    return mean_loss(divergences, sides, axis_name)


def _sum_by_products(
    side: Side, center: jax.Array, smoothing: float, precision: lax.PrecisionLike
) -> jax.Array:
    """The sum of squared distances' divergences; |x_i|^2 changes no softmax and is left out.

    `center` is subtracted from all vectors, so that their squares are small.
    """
    rows, positives, columns = (vectors - center for vectors in side[:3])
    positive = 2 * (rows * positives).sum(axis=1) - (positives**2).sum(axis=1)
    bias = -(columns**2).sum(axis=1)
    logits = Logits(2 * rows, columns, bias, positive, side.own, side.clusters)
    return divergence_sum(logits, smoothing, precision)


def _dense_sum(
    side: Side, smoothing: float, distance: str, prior: str, precision: lax.PrecisionLike
) -> jax.Array:
    """The sum of the divergences of any distance and prior, with all logits in memory."""
    logits = -from_squared(squared_distances(side.rows, side.columns, precision), distance)
    positive = -paired_distances(side.rows, side.positives, distance)
    # The cross-entropy compares the own candidate with the others, not with all: for p_ii close
    # to 1, 1 - p_ii would be lost to rounding.
    hidden = non_negatives(side.own, len(side.columns), side.clusters)
    others = jnp.where(hidden, -jnp.inf, logits)
    cross_entropy = jax.nn.softplus(jax.nn.logsumexp(others, axis=1) - positive)
    if prior == "uniform":
        count, mean = mean_logits(logits, positive, hidden, axis=1)
        entropy = target_entropy(count, smoothing)
    else:
        spread = jax.nn.softmax(lax.stop_gradient(others), axis=1, where=~hidden)
        alone = hidden.all(axis=1)
        mean = jnp.where(hidden, 0, spread * logits).sum(axis=1)
        mean = jnp.where(alone, positive, mean)
        kept = entr(jnp.asarray(1 - smoothing, logits.dtype))
        entropy = jnp.where(alone, 0, entr(smoothing * spread).sum(axis=1) + kept)
    return (cross_entropy + smoothing * (positive - mean) - entropy).sum()
