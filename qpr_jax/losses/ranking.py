"""Multiple negatives ranking loss: a softmax over similarities."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.errors import UserError
from qpr_jax.losses.distances import (
    as_floats,
    check_batch,
    check_choice,
    check_smoothing,
    gather,
    gather_clusters,
    own_rows,
)
from qpr_jax.losses.row_logsumexp import Logits, divergence_sum
from qpr_jax.unit_vectors import unit_vectors


def ranking_loss(
    queries: jax.Array,
    candidates: jax.Array,
    *,
    similarity: str = "cosine",
    similarity_scale: float = 20.0,
    smoothing: float = 0.0,
    symmetric: bool = False,
    clusters: jax.Array | None = None,
    axis_name: Hashable | None = None,
    precision: str | lax.PrecisionLike = "highest",
) -> jax.Array:
    """Mean over the batch of the cross-entropy of the pair's own candidate among all candidates.

    With s_ij the similarity of query i and candidate j, the prediction is
    p_ij = softmax_j(similarity_scale s_ij).

    Args:
      queries: floating [n, d].
      candidates: floating [m, d], m >= n; those from n on are negatives of every query.
      similarity: "cosine", which is 0 for a vector of zeros, or "dot", the dot product.
      similarity_scale: factor of the similarity, above 0. 20 is usual for cosines, 1 for dot
        products.
      smoothing: the mass spread evenly over all candidates, 0 to 1, as in `sdml_loss`. The entropy
        of the targets is subtracted, so that the minimum is 0.
      symmetric: take the mean of this loss and that of the n paired candidates against all queries.
      clusters: as in `sdml_loss`.
      axis_name: as in `sdml_loss`.
      precision: as in `sdml_loss`.

    Returns:
      float32 scalar, float64 if the vectors are, at least 0 to rounding. Forward-mode derivatives
      are not supported.

    Raises:
      ValueError: an argument has another shape, range or name than stated above.

    Example:
      >>> x = jnp.eye(3)
      >>> float(ranking_loss(x, x, similarity_scale=1.0))  # log(1 + 2 exp(-1))
      0.55144...

    Source:
      Henderson et al. (2017), "Efficient Natural Language Response Suggestion for Smart Reply",
      section 4.4, for dot products. For cosines, with this scale, it is
      MultipleNegativesRankingLoss of sentence-transformers, and if `symmetric`
      MultipleNegativesSymmetricRankingLoss.
    """
    check_batch(queries, candidates, clusters)
    check_choice("similarity", similarity, ("cosine", "dot"))
    check_smoothing(smoothing)
    if not 0 < similarity_scale < float("inf"):
        raise UserError(
            f"`similarity_scale`: expected above 0 and finite, got {similarity_scale}",
            remedy="20 is usual for cosines, 1 for dot products",
        )
    n, m = len(queries), len(candidates)
    queries, candidates = as_floats(queries, candidates)
    if similarity == "cosine":
        queries, candidates = unit_vectors(queries), unit_vectors(candidates)
    known = gather_clusters(clusters, n, m, axis_name)
    own = own_rows(n, axis_name)[:, 0]
    positive = similarity_scale * (queries * candidates[:n]).sum(axis=1)
    directions = [(queries, candidates)]
    if symmetric:
        directions.append((candidates[:n], queries))
    loss = jnp.zeros_like(positive).sum()
    for rows, others in directions:
        columns = gather(others, n, axis_name)
        bias = jnp.zeros_like(columns[:, 0])
        seen = None if known is None else known[: len(columns)]
        logits = Logits(similarity_scale * rows, columns, bias, positive, own, seen)
        loss += divergence_sum(logits, smoothing=smoothing, precision=precision)
    loss /= n * len(directions)
    return loss if axis_name is None else lax.pmean(loss, axis_name)
