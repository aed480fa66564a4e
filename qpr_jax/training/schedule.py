"""The learning rate of a step, as the settings say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from qpr_jax.errors import UserError

# The batch that `learning_rate` is meant for: the paper's.
BASE_BATCH = 512
# Rate against batch: as the noise of a gradient falls, or as the steps of an epoch get fewer.
SCALINGS = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}


def make_schedule(settings: ConfigDict, total: int) -> optax.Schedule:
    """A function from the steps done (an array of any shape) to the rate of the next.

    total: the steps that a training takes at most, over which a decaying rate falls to 0; UserError
      where the warm-up takes more.

    Source of the scalings: Goyal et al. (2017), "Accurate, Large Minibatch SGD" (linear, with
    warm-up); Malladi et al. (2022), "On the SDEs and Scaling Rules for Adaptive Gradient
    Algorithms" (square root, for Adam).
    """
    if settings.warmup_steps > total:
        raise UserError(
            f"`warmup_steps`: expected at most the {total} steps of the training, got "
            f"{settings.warmup_steps}; set `--config.warmup_steps`"
        )
    factor = (settings.batch_size / BASE_BATCH) ** SCALINGS[settings.learning_rate_scaling]
    peak, warmup = settings.learning_rate * factor, settings.warmup_steps

    def rate(done: jax.Array) -> jax.Array:
        rates = jnp.full(jnp.shape(done), peak)
        if warmup:
            rates *= jnp.minimum(1, (done + 1) / warmup)
        if settings.learning_rate_decay == "linear":
            rates *= jnp.maximum(0, 1 - done / total)
        return rates

    return rate
