"""Contrastive losses of labeled pairs: duplicates get close, others apart by a margin."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qpr_jax.arrays import unit_vectors
from qpr_jax.losses.distances import as_floats, device_mean, gather, require


def contrastive_loss(
    left: jax.Array,
    right: jax.Array,
    labels: jax.Array,
    *,
    margin: float = 0.5,
    axis_name: Hashable | None = None,
) -> jax.Array:
    """Mean over the batch of half the squared distance, or of half the squared margin violation.

    With d_i = 1 - cosine of pair i and y_i its label, it is the mean of
    0.5 (y_i d_i^2 + (1 - y_i) max(0, margin - d_i)^2). The cosine of a vector of zeros is 0.

    Args:
      left, right: floating [n, d]; row i of both is a pair.
      labels: boolean or number [n]: 1 if the two mean the same, else 0. Others raise ValueError
        outside `jit`.
      margin: the smallest distance without loss of pairs with label 0, 0 to 2.

    For `axis_name` see `qpr_jax.losses`.

    Example:
      >>> x = jnp.eye(2)
      >>> float(contrastive_loss(x, x[::-1], jnp.array([1, 0]), margin=1.5))  # (1 + 0.25) / 4
      0.3125

    Source:
      Hadsell, Chopra and LeCun (2006), "Dimensionality Reduction by Learning an Invariant
      Mapping", equation (4), in which Y is 0 for two of one meaning; ContrastiveLoss of
      sentence-transformers.
    """
    _, _, squares = _labeled_distances(left, right, labels, margin)
    return device_mean(0.5 * squares.mean(), axis_name)


def online_contrastive_loss(
    left: jax.Array,
    right: jax.Array,
    labels: jax.Array,
    *,
    margin: float = 0.5,
    axis_name: Hashable | None = None,
) -> jax.Array:
    """Squares of `contrastive_loss` of the hard pairs, divided by the number of all pairs.

    A pair with label 0 is hard if it is closer than the farthest pair with label 1, and a pair with
    label 1 if it is farther than the closest pair with label 0. If the batch has fewer than two
    pairs of the other label, the mean distance of the pair's own label replaces that extreme. The
    choice has no gradient.

    sentence-transformers takes the sum, which grows with the batch. Like there it is not halved.
    The arguments are those of `contrastive_loss`. Hard pairs are chosen among those of all devices.

    Example:
      >>> distances = jnp.array([0.1, 0.4, 0.3, 0.6])
      >>> y = jnp.stack([1 - distances, jnp.sqrt(1 - (1 - distances) ** 2)], axis=1)
      >>> x, labels = jnp.eye(2)[jnp.zeros(4, int)], jnp.array([1, 1, 0, 0])
      >>> round(float(online_contrastive_loss(x, y, labels)), 4)  # (0.4^2 + 0.2^2) / 4
      0.05

    Source:
      OnlineContrastiveLoss of sentence-transformers; Hadsell, Chopra and LeCun (2006), equation
      (4), for the squares.
    """
    distances, same, squares = _labeled_distances(left, right, labels, margin)
    all_same = gather(same, len(same), axis_name)
    all_distances = gather(lax.stop_gradient(distances), len(same), axis_name)
    positives, _, farthest, positive_mean = _spread(all_distances, all_same)
    negatives, closest, _, negative_mean = _spread(all_distances, ~all_same)
    near_enough = distances <= jnp.where(negatives > 1, closest, positive_mean)
    far_enough = distances >= jnp.where(positives > 1, farthest, negative_mean)
    # A distance that is not finite makes its pair hard, so that the loss shows it.
    easy = jnp.where(same, near_enough, far_enough) & jnp.isfinite(distances)
    return device_mean(jnp.where(easy, 0, squares).mean(), axis_name)


def _labeled_distances(
    left: jax.Array, right: jax.Array, labels: jax.Array, margin: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Check the arguments; return [n]: distances, labels (bool), squares (also of violations)."""
    paired = left.ndim == 2 and 0 not in left.shape and left.shape == right.shape
    got = f"{left.shape} and {right.shape}; row i of both is a pair"
    require(paired, "`left` and `right` of one non-empty [n, d]", got)
    labels = labels if isinstance(labels, jax.Array) else np.asarray(labels)
    require(labels.shape == left.shape[:1], f"`labels` {left.shape[:1]}", labels.shape)
    if not isinstance(labels, jax.core.Tracer):
        given = np.asarray(labels)  # not a comparison by JAX, which `jit` would trace
        other = given[(given != 0) & (given != 1)]
        require(not other.size, "`labels` of 1 or 0", str(other[:1])[1:-1])
    require(0 <= margin < float("inf"), "`margin` of at least 0 and finite", margin)
    left, right = map(unit_vectors, as_floats(left, right))
    distances, same = 1 - (left * right).sum(axis=1), labels.astype(bool)
    return distances, same, jnp.where(same, distances, jax.nn.relu(margin - distances)) ** 2


def _spread(distances: jax.Array, chosen: jax.Array) -> tuple[jax.Array, ...]:
    """Number, minimum, maximum and mean of the chosen distances."""
    count = chosen.sum()
    least = jnp.where(chosen, distances, jnp.inf).min()
    greatest = jnp.where(chosen, distances, -jnp.inf).max()
    mean = jnp.where(chosen, distances, 0).sum() / jnp.maximum(count, 1)
    # So that the mean of equal distances is equal to them, in spite of rounding.
    return count, least, greatest, jnp.clip(mean, least, greatest)
