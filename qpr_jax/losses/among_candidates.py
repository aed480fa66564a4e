"""Losses that compare each row with all candidates of its batch."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.arrays import (
    from_squared,
    is_negative,
    mean_vector,
    paired_distances,
    squared_distances,
    unit_vectors,
)
from qpr_jax.losses.batch import both_ways
from qpr_jax.losses.tiled_softmax import divergences, target_entropy


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


def ranking_loss(
    queries: jax.Array,
    candidates: jax.Array,
    positives: jax.Array,
    clusters: jax.Array | None = None,
    *,
    similarity_scale: float = 20.0,
    smoothing: float = 0.0,
    both: bool = False,
    axis_name: Hashable | None = None,
) -> jax.Array:
    """Return the cross-entropy of each row's positive among all candidates, [n].

    With s_ij the cosine of query i and candidate j, 0 for a vector of zeros, the prediction is
    p_ij = softmax_j(similarity_scale s_ij). Forward-mode derivatives are not supported.

    Args:
      queries, candidates, positives, clusters: as in `qpr_jax.losses`.
      similarity_scale: factor of the cosine, above 0.
      smoothing: the mass spread evenly over all candidates, 0 to 1, as in `sdml_loss`. The entropy
        of the targets is subtracted, so that the minimum is 0.
      both, axis_name: as in `qpr_jax.losses`.

    Example:
      >>> x = jnp.eye(3)
      >>> float(ranking_loss(x, x, jnp.arange(3), similarity_scale=1.0)[0])  # log(1 + 2 exp(-1))
      0.55144...

    Source:
      Henderson et al. (2017), "Efficient Natural Language Response Suggestion for Smart Reply",
      section 4.4, of dot products. With this scale its mean is MultipleNegativesRankingLoss of
      sentence-transformers, and with `symmetric` MultipleNegativesSymmetricRankingLoss.
    """
    rows, columns = similarity_scale * unit_vectors(queries), unit_vectors(candidates)
    biases = jnp.zeros_like(rows[:, 0]), jnp.zeros_like(columns[:, 0])
    return divergences(
        rows, columns, biases, positives, clusters, smoothing, both=both, axis_name=axis_name
    )


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
