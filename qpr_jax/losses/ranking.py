"""Multiple negatives ranking: the softmax over a batch of SDML, of similarities."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.errors import UserError
from qpr_jax.losses.choices import SIMILARITIES
from qpr_jax.losses.distances import check_batch, check_choice, unit_vectors
from qpr_jax.losses.sdml import sdml_loss


def ranking_loss(
    queries: jax.Array,
    candidates: jax.Array,
    *,
    similarity: str = "cosine",
    scale: float = 20.0,
    smoothing: float = 0.0,
    symmetric: bool = False,
    clusters: jax.Array | None = None,
    tile: int | Literal["auto"] | None = "auto",
    axis_name: Hashable | None = None,
    precision: lax.PrecisionLike = lax.Precision.HIGHEST,
) -> jax.Array:
    """Mean over the batch of the cross-entropy of the pair's own candidate among all candidates.

    With s_ij the similarity of query i and candidate j, the prediction is
    p_ij = softmax_j(scale s_ij). It is `sdml_loss` of the distances -scale s_ij, and all that is
    said there of masks, further candidates, both directions, tiles and devices holds here.

    Args:
      queries: floating [n, d].
      candidates: floating [m, d], m >= n; those from n on are negatives of every query.
      similarity: "cosine", to which a vector of zeros has 0, or "dot", the dot product.
      scale: what the similarity is multiplied by, above 0. 20 is usual for cosines, which are 1 at
        most, 1 for dot products.
      smoothing: the mass spread evenly over all candidates, 0 to 1, as in `sdml_loss`: the targets'
        entropy is subtracted, so that the least value is 0.
      symmetric: the mean of this loss and that of the n paired candidates against all queries.
      clusters: integer [m], or [n] where the rest has none: the cluster of each candidate and its
        query, -1 for none. Other candidates of a row's cluster are left out of that row.
      tile: how many anchors' rows of similarities are held at a time, as in `sdml_loss`.
      axis_name: the mapped axis (of `jax.shard_map`, say) that the batch is split over, as in
        `sdml_loss`. Neither value nor gradient depends on the devices.
      precision: of the matrix products.

    Returns:
      float32 scalar, at least 0 to rounding.

    Raises:
      ValueError: an argument is of another shape, range or name than said above.

    Example:
      >>> x = jnp.eye(3)
      >>> float(ranking_loss(x, x, scale=1.0))  # log(1 + 2 exp(-1))
      0.55144...

    Source: Henderson et al. (2017), "Efficient Natural Language Response Suggestion for Smart
    Reply", section 4.4, of dot products; of cosines, with this scale, it is sentence-transformers'
    MultipleNegativesRankingLoss, with `symmetric` its MultipleNegativesSymmetricRankingLoss.
    """
    check_batch(queries, candidates, clusters)
    check_choice("similarity", similarity, SIMILARITIES)
    if not 0 < scale < float("inf"):
        raise UserError(
            f"`scale`: expected above 0 and finite, got {scale}; 20 is usual for cosines, 1 for "
            "dot products"
        )
    queries, candidates = (side.astype(jnp.float32) for side in (queries, candidates))
    if similarity == "cosine":
        queries, candidates = unit_vectors(queries), unit_vectors(candidates)
    return sdml_loss(
        scale * queries,
        candidates,
        distance="dot",
        smoothing=smoothing,
        symmetric=symmetric,
        clusters=clusters,
        tile=tile,
        axis_name=axis_name,
        precision=precision,
    )
