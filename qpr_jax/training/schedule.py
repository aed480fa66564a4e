"""The learning rate of each step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from qpr_jax.errors import UserError
from qpr_jax.training.config import TrainConfig

# The batch size at which the scalings change nothing: that of the paper.
BASE_BATCH = 512
# Exponents of batch_size / BASE_BATCH. The root follows the noise of the gradient, linear scaling
# the number of steps in an epoch.
SCALINGS = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}

# The share of the steps, the last ones, in which a rate falls to 0. Without decay before the end,
# a longer training has the same first steps as a shorter one.
DECAYS = {"none": 0.0, "linear": 1.0, "late": 1 / 3}


def make_schedule(config: TrainConfig, total: int, *, imitation: int = 0) -> optax.Schedule:
    """Make a function from the steps done (an array of any shape) to the rate of the next.

    Args:
      total: the largest number of steps of the training.
      imitation: how many of these, the first ones, are imitation. Warm-up is in
        the first stage; a decaying rate falls to 0 over each stage.

    Raises:
      UserError: warm-up takes more steps than the first stage.

    Source:
      Goyal et al. (2017), "Accurate, Large Minibatch SGD" (linear scaling, with warm-up); Malladi
      et al. (2022), "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms" (square root,
      for Adam).
    """
    optimizer = config.optimizer
    warmup, first_steps = optimizer.warmup_steps, imitation or total
    if warmup > first_steps:
        raise UserError(
            f"expected at most the {first_steps} steps of the training, got {warmup}",
            setting="optimizer.warmup_steps",
        )

    def part(peak: float, batch_size: int, steps: int, warmup: int) -> optax.Schedule:
        peak *= (batch_size / BASE_BATCH) ** SCALINGS[optimizer.learning_rate_scaling]

        def rate(done: jax.Array) -> jax.Array:
            rates = jnp.full(jnp.shape(done), peak)
            if warmup:
                rates *= jnp.minimum(1, (done + 1) / warmup)
            if share := DECAYS[optimizer.learning_rate_decay]:
                rates *= jnp.clip((1 - done / steps) / share, 0, 1)
            return rates

        return rate

    if not imitation:
        return part(optimizer.learning_rate, config.batch_size, total, warmup)
    first = part(optimizer.learning_rate, config.teacher.batch_size, imitation, warmup)
    then = part(optimizer.learning_rate, config.batch_size, max(1, total - imitation), 0)
    return lambda done: jnp.where(done < imitation, first(done), then(done - imitation))
