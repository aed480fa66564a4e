"""Imitation losses: a student learns the vectors of its teacher, or a judge's order of lists."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import log_softmax

from qpr_jax.losses.distances import as_floats, device_mean, require


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


def listwise_loss(
    queries: jax.Array,
    candidates: jax.Array,
    scores: jax.Array,
    *,
    axis_name: Hashable | None = None,
) -> jax.Array:
    """KL divergence of the student's order of lists from a judge's.

    The negative squared distances of a query to its candidates are the logits of the student, and
    the scores those of the judge. The loss is the mean over queries of KL(judge || student).

    Args:
      queries: floating [n, d].
      candidates: floating [n, k, d], of each query.
      scores: floating [n, k], a greater one is nearer. A constant: no gradient.

    For `axis_name` see `qpr_jax.losses`.

    Example:
      >>> x = jnp.array([[1.0, 0.0]])
      >>> float(listwise_loss(x, jnp.array([[[1.0, 0.0], [0.0, 1.0]]]), jnp.array([[0.0, -2.0]])))
      0.0

    Source:
      Cao, Qin, Liu, Tsai and Li (2007), "Learning to Rank: From Pairwise Approach to Listwise
      Approach", section 4, with top-one probabilities and KL for the cross-entropy, which have the
      same gradient.
    """
    fits = candidates.ndim == 3 and candidates.shape[:2] == scores.shape
    got = f"{queries.shape}, {candidates.shape} and {scores.shape}"
    fits = fits and queries.shape == (len(candidates), candidates.shape[2])
    require(fits, "`queries` [n, d], `candidates` [n, k, d] and `scores` [n, k]", got)
    queries, candidates, scores = as_floats(queries, candidates, lax.stop_gradient(scores))
    student = log_softmax(-((queries[:, None] - candidates) ** 2).sum(axis=2))
    judge = log_softmax(scores)
    return device_mean((jnp.exp(judge) * (judge - student)).sum(axis=1).mean(), axis_name)
