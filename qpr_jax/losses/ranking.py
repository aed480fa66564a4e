"""Multiple negatives ranking loss: a softmax over similarities."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.arrays import unit_vectors
from qpr_jax.losses.distances import Side, mean_loss, pair_sides, require
from qpr_jax.losses.row_logsumexp import Logits, divergence_sum


def ranking_loss(
    queries: jax.Array,
    candidates: jax.Array,
    *,
    similarity_scale: float = 20.0,
    smoothing: float = 0.0,
    symmetric: bool = False,
    clusters: jax.Array | None = None,
    axis_name: Hashable | None = None,
    precision: lax.PrecisionLike = "highest",
) -> jax.Array:
    """Mean over the batch of the cross-entropy of the pair's own candidate among all candidates.

    With s_ij the cosine of query i and candidate j, 0 for a vector of zeros, the prediction is
    p_ij = softmax_j(similarity_scale s_ij). Forward-mode derivatives are not supported.

    Args:
      queries, candidates: floating [n, d] and [m, d], m >= n.
      similarity_scale: factor of the cosine, above 0.
      smoothing: the mass spread evenly over all candidates, 0 to 1, as in `sdml_loss`. The entropy
        of the targets is subtracted, so that the minimum is 0.
      symmetric: take the mean of this loss and that of the n paired candidates against all queries.

    For `clusters`, `axis_name` and `precision` see `qpr_jax.losses`.

    Example:
      >>> x = jnp.eye(3)
      >>> float(ranking_loss(x, x, similarity_scale=1.0))  # log(1 + 2 exp(-1))
      0.55144...

    Source:
      Henderson et al. (2017), "Efficient Natural Language Response Suggestion for Smart Reply",
      section 4.4, of dot products. With this scale it is MultipleNegativesRankingLoss of
      sentence-transformers, and if `symmetric` MultipleNegativesSymmetricRankingLoss.
    """
    require(0 <= smoothing <= 1, "`smoothing` from 0 to 1", smoothing)
    finite = 0 < similarity_scale < float("inf")
    require(finite, "a finite `similarity_scale` above 0", similarity_scale)
    sides = pair_sides(queries, candidates, clusters, axis_name, symmetric=symmetric)

    def divergences(side: Side) -> jax.Array:
        rows, positives, columns = map(unit_vectors, side[:3])
        rows, bias = similarity_scale * rows, jnp.zeros_like(columns[:, 0])
        positive = (rows * positives).sum(axis=1)
        logits = Logits(rows, columns, bias, positive, side.own, side.clusters)
        return divergence_sum(logits, smoothing, precision)

    return mean_loss(divergences, sides, axis_name)
