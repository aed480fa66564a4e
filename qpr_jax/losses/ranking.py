"""Multiple negatives ranking loss: a softmax over similarities."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp

from qpr_jax.arrays import unit_vectors
from qpr_jax.losses.row_logsumexp import divergences


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
