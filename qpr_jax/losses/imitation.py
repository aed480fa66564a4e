"""Imitation loss: a student learns to give the vectors of its teacher."""

from __future__ import annotations

from collections.abc import Hashable

import jax
from jax import lax

from qpr_jax.errors import UserError
from qpr_jax.losses.distances import as_floats


def imitation_loss(
    vectors: jax.Array, targets: jax.Array, *, axis_name: Hashable | None = None
) -> jax.Array:
    """Mean over the batch of half the squared distance of a vector to its target.

    For vectors of length 1 it is 1 - cosine.

    Args:
      vectors: floating [n, d], of the student.
      targets: floating [n, d], of the teacher for the same questions.
      axis_name: the mapped axis (for example of `jax.shard_map`) that the batch is split over.

    Returns:
      float32 scalar, float64 if the vectors are, the mean over the global batch.

    Raises:
      ValueError: the shapes differ.

    Example:
      >>> float(imitation_loss(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])))
      1.0

    Source:
      Reimers and Gurevych (2020), "Making Monolingual Sentence Embeddings Multilingual using
      Knowledge Distillation", equation (1).
    """
    if vectors.ndim != 2 or vectors.shape != targets.shape:
        raise UserError(
            f"`targets`: expected [n, d] as `vectors`, got {list(targets.shape)} and "
            f"{list(vectors.shape)}",
            remedy="give a row for each vector",
        )
    vectors, targets = as_floats(vectors, targets)
    difference = vectors - targets
    loss = 0.5 * (difference**2).sum(axis=1).mean()
    return loss if axis_name is None else lax.pmean(loss, axis_name)
