"""Imitation losses: a student learns the vectors of its teacher, or their similarities."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from qpr_jax.arrays import unit_vectors
from qpr_jax.losses.distances import as_floats, device_mean, gather, own_rows, require


def imitation_loss(
    vectors: jax.Array, targets: jax.Array, *, axis_name: Hashable | None = None
) -> jax.Array:
    """Mean over the batch of half the squared distance of a vector to its target.

    For vectors of length 1 it is 1 - cosine.

    Args:
      vectors, targets: floating [n, d], of the student and the teacher for the same questions.

    For `axis_name` see `qpr_jax.losses`.

    Example:
      >>> float(imitation_loss(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])))
      1.0

    Source:
      Reimers and Gurevych (2020), "Making Monolingual Sentence Embeddings Multilingual using
      Knowledge Distillation", equation (1).
    """
    paired = vectors.ndim == 2 and vectors.shape == targets.shape
    got = f"{vectors.shape} and {targets.shape}"
    require(paired, "`vectors` and `targets` of one [n, d]", got)
    vectors, targets = as_floats(vectors, targets)
    difference = vectors - targets
    return device_mean(0.5 * (difference**2).sum(axis=1).mean(), axis_name)


def similarities_loss(
    vectors: jax.Array,
    targets: jax.Array,
    *,
    temperature: float = 0.05,
    precision: lax.PrecisionLike = "highest",
    axis_name: Hashable | None = None,
) -> jax.Array:
    """KL divergence of the student's neighbors in the batch from the teacher's.

    The cosines of a question to all others of the batch, over the temperature, are the logits of a
    distribution; a question is no neighbor of itself. The loss is the mean over questions of
    KL(teacher || student). It is 0 where the student has the teacher's cosines up to a constant
    for each question, so it asks less than `imitation_loss`, and weighs near neighbors most.

    Args:
      vectors: floating [n, d], of the student.
      targets: floating [n, t], of the teacher for the same questions. A constant: no gradient.
      temperature: above 0; a small one looks at the nearest neighbors alone.

    For `axis_name` and `precision` see `qpr_jax.losses`.

    Example:
      >>> x = jnp.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
      >>> float(similarities_loss(x, x))
      0.0

    Source:
      Fang, Wang, Wang, Zhang, Yang and Liu (2021), "SEED: Self-supervised Distillation for Visual
      Representation", equation (5), with the batch for the queue and KL for the cross-entropy,
      which have the same gradient.
    """
    paired = vectors.ndim == targets.ndim == 2 and len(vectors) == len(targets)
    got = f"{vectors.shape} and {targets.shape}"
    require(paired, "`vectors` [n, d] and `targets` [n, t]", got)
    require(0 < temperature < float("inf"), "`temperature` above 0 and finite", temperature)
    sides = map(unit_vectors, as_floats(vectors, lax.stop_gradient(targets)))
    own = own_rows(len(vectors), axis_name)[:, None]
    shares = []
    for side in sides:
        everyone = gather(side, len(side), axis_name)
        require(len(everyone) > 1, "`vectors` of 2 and more questions", len(everyone))
        neighbors = own != jnp.arange(len(everyone), dtype=own.dtype)[None]
        logits = jnp.matmul(side, everyone.T, precision=precision) / temperature
        shares.append(logits - logsumexp(logits, axis=1, keepdims=True, where=neighbors))
    student, teacher = shares  # the logarithms of the softmax over the neighbors
    divergences = jnp.exp(teacher) * (teacher - student)
    return device_mean(jnp.where(neighbors, divergences, 0).sum(axis=1).mean(), axis_name)
