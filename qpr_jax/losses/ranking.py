"""Multiple negatives ranking loss: the softmax of SDML over similarities."""

from __future__ import annotations

from collections.abc import Hashable

import jax
from jax import lax

from qpr_jax.errors import UserError
from qpr_jax.losses.choices import SIMILARITIES
from qpr_jax.losses.dispatch import Tile
from qpr_jax.losses.distances import as_floats, check_batch, check_choice
from qpr_jax.losses.sdml import sdml_loss
from qpr_jax.tuning import Tuning
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
    tile: Tile = "auto",
    axis_name: Hashable | None = None,
    precision: str | lax.PrecisionLike = "highest",
    tuning: Tuning | None = None,
) -> jax.Array:
    """Mean over the batch of the cross-entropy of the pair's own candidate among all candidates.

    With s_ij the similarity of query i and candidate j, the prediction is
    p_ij = softmax_j(scale s_ij). It is `sdml_loss` of the distances -scale s_ij, with the same
    masks, extra candidates, directions, tiles and devices.

    Args:
      queries: floating [n, d].
      candidates: floating [m, d], m >= n; those from n on are negatives of every query.
      similarity: "cosine", which is 0 for a vector of zeros, or "dot", the dot product.
      similarity_scale: factor of the similarity, above 0. 20 is usual for cosines, 1 for dot
        products.
      smoothing: the mass spread evenly over all candidates, 0 to 1, as in `sdml_loss`. The entropy
        of the targets is subtracted, so that the minimum is 0.
      symmetric: take the mean of this loss and that of the n paired candidates against all queries.
      clusters: integer [m], or [n] if the extra candidates have none: the cluster of each
        candidate and its query, -1 for none; ids fit int32. A row skips other candidates
        of its own cluster.
      tile: rows of similarities that are computed at a time, as in `sdml_loss`.
      axis_name: the mapped axis (for example of `jax.shard_map`) that the batch is split over, as
        in `sdml_loss`. Neither value nor gradient depends on the devices.
      precision: of the matrix products, as in `sdml_loss`.
      tuning: the platform and its constants; None: of JAX's first device.

    Returns:
      float32 scalar, float64 if the vectors are, at least 0 to rounding.

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
    check_choice("similarity", similarity, SIMILARITIES)
    if not 0 < similarity_scale < float("inf"):
        raise UserError(
            f"`similarity_scale`: expected above 0 and finite, got {similarity_scale}",
            remedy="20 is usual for cosines, 1 for dot products",
        )
    queries, candidates = as_floats(queries, candidates)
    if similarity == "cosine":
        queries, candidates = unit_vectors(queries), unit_vectors(candidates)
    return sdml_loss(
        similarity_scale * queries,
        candidates,
        distance="dot",
        smoothing=smoothing,
        symmetric=symmetric,
        clusters=clusters,
        tile=tile,
        axis_name=axis_name,
        precision=precision,
        tuning=tuning,
    )
