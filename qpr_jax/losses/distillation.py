"""Distillation: a student learns the vectors of a teacher, or a judge's order of lists."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import log_softmax


def distillation_loss(vectors: jax.Array, targets: jax.Array) -> jax.Array:
    """Return half the squared distance of each vector to its target, [n].

    For vectors of length 1 it is 1 - cosine. `vectors` and `targets` are floating [n, d], of the
    student and the teacher for the same questions.

    Example:
      >>> distillation_loss(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])).tolist()
      [1.0]

    Source:
      Reimers and Gurevych (2020), "Making Monolingual Sentence Embeddings Multilingual using
      Knowledge Distillation", equation (1).
    """
    return 0.5 * ((vectors - targets) ** 2).sum(axis=1)


def listwise_loss(queries: jax.Array, candidates: jax.Array, scores: jax.Array) -> jax.Array:
    """Return KL(judge || student) of the order of each query's list, [n].

    The negative squared distances of a query to its candidates are the logits of the student, and
    the scores those of the judge.

    Args:
      queries: floating [n, d].
      candidates: floating [n, k, d], of each query.
      scores: floating [n, k], a greater one is nearer. A constant: no gradient.

    Example:
      >>> x = jnp.array([[1.0, 0.0]])
      >>> y = jnp.array([[[1.0, 0.0], [0.0, 1.0]]])
      >>> listwise_loss(x, y, jnp.array([[0.0, -2.0]])).tolist()
      [0.0]

    Source:
      Cao, Qin, Liu, Tsai and Li (2007), "Learning to Rank: From Pairwise Approach to Listwise
      Approach", section 4, with top-one probabilities and KL for the cross-entropy, which have the
      same gradient.
    """
    student = log_softmax(-((queries[:, None] - candidates) ** 2).sum(axis=2))
    judge = log_softmax(lax.stop_gradient(scores))
    return (jnp.exp(judge) * (judge - student)).sum(axis=1)
