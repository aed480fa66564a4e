"""From two batches of vectors to a scalar: pure functions of arrays."""

from qpr_jax.losses.contrastive import contrastive_loss, online_contrastive_loss
from qpr_jax.losses.imitation import imitation_loss
from qpr_jax.losses.ranking import ranking_loss
from qpr_jax.losses.sdml import sdml_loss
from qpr_jax.losses.triplet import triplet_loss

__all__ = [
    "contrastive_loss",
    "imitation_loss",
    "online_contrastive_loss",
    "ranking_loss",
    "sdml_loss",
    "triplet_loss",
]
