"""Losses: pure functions of a batch's vectors.

Losses of pairs take `queries`, floating [n, d], and `candidates`, floating [m, d] with m >= n. Row
i of both is a pair; the candidates from n on are negatives of every query. A loss is a scalar, the
mean over the global batch: float32, or float64 if the vectors are. It raises ValueError for wrong
arguments.

Shared arguments:
  clusters: integer [m], the cluster of each candidate and its query, -1 for none; ids fit int32.
    A row skips other candidates of its cluster.
  axis_name: the mapped axis (for example of `jax.shard_map`) that the batch is split over. The
    candidates of all devices are gathered; neither value nor gradient depends on the number of
    devices. Take the gradient outside the map: inside an unchecked one (`check_vma=False`) it is
    too large by the number of devices.
  precision: of the matrix products, as JAX names it.
"""

from qpr_jax.errors import needs

with needs("the losses", ".[train]"):
    from qpr_jax.losses.contrastive import contrastive_loss, online_contrastive_loss
    from qpr_jax.losses.imitation import imitation_loss, listwise_loss
    from qpr_jax.losses.ranking import ranking_loss
    from qpr_jax.losses.sdml import sdml_loss
    from qpr_jax.losses.triplet import triplet_loss

__all__ = [
    "contrastive_loss",
    "imitation_loss",
    "listwise_loss",
    "online_contrastive_loss",
    "ranking_loss",
    "sdml_loss",
    "triplet_loss",
]
