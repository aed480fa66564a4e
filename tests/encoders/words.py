"""Questions as the encoder takes them."""

import jax
import jax.numpy as jnp


def padded(questions: list[list[int]], width: int) -> jax.Array:
    """Word ids [questions, width], padded with zeros."""
    return jnp.asarray([question + [0] * (width - len(question)) for question in questions])
