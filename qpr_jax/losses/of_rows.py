"""Losses of rows that come with what they should be like: a label, a vector or scores."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import log_softmax

from qpr_jax.arrays import unit_vectors


def contrastive_loss(
    left: jax.Array, right: jax.Array, labels: jax.Array, *, margin: float = 0.5
) -> jax.Array:
    """Return half the squared distance of each pair, or of its margin violation, [n].

    With d_i = 1 - cosine of pair i and y_i its label, it is
    0.5 (y_i d_i^2 + (1 - y_i) max(0, margin - d_i)^2). The cosine of a vector of zeros is 0.

    Args:
      left: floating [n, d].
      right: floating [n, d]; row i of both is a pair.
      labels: boolean or number [n]: 1 if the two mean the same, else 0.
      margin: the smallest distance without loss of pairs with label 0, 0 to 2.

    Example:
      >>> x = jnp.eye(2)
      >>> contrastive_loss(x, x[::-1], jnp.array([1, 0]), margin=1.5).tolist()
      [0.5, 0.125]

    Source:
      Hadsell, Chopra and LeCun (2006), "Dimensionality Reduction by Learning an Invariant
      Mapping", equation (4), in which Y is 0 for two of one meaning; ContrastiveLoss of
      sentence-transformers.
    """
    return 0.5 * _distances_and_squares(left, right, labels, margin)[1]


def online_contrastive_loss(
    left: jax.Array, right: jax.Array, labels: jax.Array, *, margin: float = 0.5
) -> jax.Array:
    """Return twice the `contrastive_loss` of hard pairs, and 0 of the others, [n].

    A pair with label 0 is hard if it is closer than the farthest pair with label 1, and a pair with
    label 1 if it is farther than the closest pair with label 0. If the batch has fewer than two
    pairs of the other label, the mean distance of the pair's own label replaces that extreme. The
    choice has no gradient. The arguments, those of `contrastive_loss`, are of the whole batch.

    sentence-transformers takes the sum, which grows with the batch. Like there it is not halved.

    Example:
      >>> distances = jnp.array([0.1, 0.4, 0.3, 0.6])
      >>> y = jnp.stack([1 - distances, jnp.sqrt(1 - (1 - distances) ** 2)], axis=1)
      >>> x, labels = jnp.eye(2)[jnp.zeros(4, int)], jnp.array([1, 1, 0, 0])
      >>> [round(loss, 4) for loss in online_contrastive_loss(x, y, labels).tolist()]
      [0.0, 0.16, 0.04, 0.0]

    Source:
      OnlineContrastiveLoss of sentence-transformers; Hadsell, Chopra and LeCun (2006), equation
      (4), for the squares.
    """
    distances, squares = _distances_and_squares(left, right, labels, margin)
    fixed, same = lax.stop_gradient(distances), labels.astype(bool)
    positives, _, farthest, positive_mean = _spread(fixed, same)
    negatives, closest, _, negative_mean = _spread(fixed, ~same)
    near_enough = fixed <= jnp.where(negatives > 1, closest, positive_mean)
    far_enough = fixed >= jnp.where(positives > 1, farthest, negative_mean)
    # A distance that is not finite makes its pair hard, so that the loss shows it.
    easy = jnp.where(same, near_enough, far_enough) & jnp.isfinite(fixed)
    return jnp.where(easy, 0, squares)


def _distances_and_squares(
    left: jax.Array, right: jax.Array, labels: jax.Array, margin: float
) -> tuple[jax.Array, jax.Array]:
    """Return the distances [n], and the squares [n] of what is missing to 0 or to the margin."""
    distances = 1 - (unit_vectors(left) * unit_vectors(right)).sum(axis=1)
    missing = jnp.where(labels.astype(bool), distances, jax.nn.relu(margin - distances))
    return distances, missing**2


def _spread(distances: jax.Array, chosen: jax.Array) -> tuple[jax.Array, ...]:
    """Return the number, minimum, maximum and mean of the chosen distances."""
    count = chosen.sum()
    least = jnp.where(chosen, distances, jnp.inf).min()
    greatest = jnp.where(chosen, distances, -jnp.inf).max()
    mean = jnp.where(chosen, distances, 0).sum() / jnp.maximum(count, 1)
    # So that the mean of equal distances is equal to them, in spite of rounding.
    return count, least, greatest, jnp.clip(mean, least, greatest)


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
