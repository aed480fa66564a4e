"""Contrastive losses of labelled pairs: of one meaning together, of two apart by a margin."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.errors import UserError
from qpr_jax.losses.choices import PAIR_DISTANCES
from qpr_jax.losses.distances import (
    check_choice,
    from_squared,
    gather,
    paired_squared_distances,
    unit_vectors,
)


def contrastive_loss(
    left: jax.Array,
    right: jax.Array,
    labels: jax.Array,
    *,
    distance: str = "cosine",
    margin: float = 0.5,
    axis_name: Hashable | None = None,
) -> jax.Array:
    """Mean over the batch of half the squared distance, or of what is missing of the margin.

    With d_i the distance of pair i and y_i its label, the mean of
    0.5 (y_i d_i^2 + (1 - y_i) max(0, margin - d_i)^2).

    Args:
      left: floating [n, d].
      right: floating [n, d]; row i of both is a pair.
      labels: boolean or number [n]: 1 where the two mean the same, 0 where not.
      distance: "cosine", 1 - cosine, which a vector of zeros has to all, or "euclidean".
      margin: how far apart those that do not mean the same are to be, at least 0. A cosine
        distance is 2 at most.
      axis_name: the mapped axis (of `jax.shard_map`, say) that the batch is split over, as in
        `sdml_loss`. Neither value nor gradient depends on the devices.

    Returns:
      float32 scalar, at least 0, the mean over the global batch. Where two vectors coincide the
      gradient of their Euclidean distance is 0, and of a vector of zeros that of the cosine.

    Raises:
      ValueError: an argument is of another shape, range or name than said above.

    Example:
      >>> x = jnp.eye(2)
      >>> float(contrastive_loss(x, x[::-1], jnp.array([1, 0]), margin=1.5))  # (1 + 0.25) / 4
      0.3125

    Source: Hadsell, Chopra and LeCun (2006), "Dimensionality Reduction by Learning an Invariant
    Mapping", equation (4), in which Y is 0 for a pair of one meaning; of cosines it is
    sentence-transformers' ContrastiveLoss.
    """
    _check_labelled(left, right, labels, distance, margin)
    same = labels.astype(bool)
    loss = 0.5 * _squares(_paired_distances(left, right, distance), same, margin).mean()
    return loss if axis_name is None else lax.pmean(loss, axis_name)


def online_contrastive_loss(
    left: jax.Array,
    right: jax.Array,
    labels: jax.Array,
    *,
    distance: str = "cosine",
    margin: float = 0.5,
    axis_name: Hashable | None = None,
) -> jax.Array:
    """Sum of the squares of `contrastive_loss` over the hard pairs of the batch.

    Hard are the pairs of two meanings that are closer than the farthest pair of one, and the pairs
    of one meaning that are farther than the closest of two. Where the other kind has fewer than
    two pairs, the mean distance of the own kind stands for its extreme. The choice has no
    gradient.

    It is the sum and not the mean, and not halved, so that it is the number that users of
    sentence-transformers know. It grows with the global batch, which Adam's steps do not show;
    beside another loss, divide it by the number of pairs.

    Args:
      left: floating [n, d].
      right: floating [n, d]; row i of both is a pair.
      labels: boolean or number [n]: 1 where the two mean the same, 0 where not.
      distance: "cosine", 1 - cosine, which a vector of zeros has to all, or "euclidean".
      margin: how far apart those that do not mean the same are to be, at least 0.
      axis_name: the mapped axis (of `jax.shard_map`, say) that the batch is split over, as in
        `sdml_loss`. The choice is among the pairs of all devices, and the sum is over them:
        neither value nor gradient depends on the devices.

    Returns:
      float32 scalar, at least 0.

    Raises:
      ValueError: an argument is of another shape, range or name than said above.

    Example:
      >>> x, y = jnp.zeros((4, 1)), jnp.array([[0.1], [0.4], [0.3], [0.6]])
      >>> labels = jnp.array([1, 1, 0, 0])  # hard: 0.4 of the first kind, 0.3 of the second
      >>> float(online_contrastive_loss(x, y, labels, distance="euclidean"))  # 0.4^2 + 0.2^2
      0.2...

    Source: sentence-transformers' OnlineContrastiveLoss; Hadsell, Chopra and LeCun (2006), equation
    (4), for the squares.
    """
    _check_labelled(left, right, labels, distance, margin)
    same = labels.astype(bool)
    distances = _paired_distances(left, right, distance)
    all_same = gather(same, len(same), axis_name)
    everyones = gather(lax.stop_gradient(distances), len(same), axis_name)
    of_same, of_others = _spread(everyones, all_same), _spread(everyones, ~all_same)
    beyond = distances > jnp.where(of_others.number > 1, of_others.least, of_same.mean)
    within = distances < jnp.where(of_same.number > 1, of_same.greatest, of_others.mean)
    hard = jnp.where(same, beyond, within)
    loss = jnp.where(hard, _squares(distances, same, margin), 0).sum()
    return loss if axis_name is None else lax.psum(loss, axis_name)


def _check_labelled(
    left: jax.Array, right: jax.Array, labels: jax.Array, distance: str, margin: float
) -> None:
    check_choice("distance", distance, PAIR_DISTANCES)
    if left.ndim != 2 or 0 in left.shape or left.shape != right.shape:
        raise UserError(
            f"expected `left` and `right` of one non-empty [n, d], got {left.shape} and "
            f"{right.shape}; row i of both is a pair"
        )
    if labels.shape != left.shape[:1]:
        raise UserError(
            f"`labels`: expected {left.shape[:1]}, got {labels.shape}; give 1 or 0 for each pair"
        )
    if not 0 <= margin < float("inf"):
        raise UserError(f"`margin`: expected at least 0 and finite, got {margin}; 0.5 is usual")


def _paired_distances(left: jax.Array, right: jax.Array, distance: str) -> jax.Array:
    """The distance of each pair, [n]."""
    left, right = left.astype(jnp.float32), right.astype(jnp.float32)
    if distance == "euclidean":
        return from_squared(paired_squared_distances(left, right), "euc")
    left, right = unit_vectors(left), unit_vectors(right)
    # 1 - x.y from the difference of the two, which keeps small ones; of zeros the rest is missing.
    missing = [(side == 0).all(axis=1).astype(jnp.float32) for side in (left, right)]
    return 0.5 * (paired_squared_distances(left, right) + missing[0] + missing[1])


class _Spread(NamedTuple):
    """How many distances, and what they are; scalars."""

    number: jax.Array
    least: jax.Array
    greatest: jax.Array
    mean: jax.Array


def _spread(distances: jax.Array, chosen: jax.Array) -> _Spread:
    number = chosen.sum()
    least = jnp.where(chosen, distances, jnp.inf).min()
    greatest = jnp.where(chosen, distances, -jnp.inf).max()
    mean = jnp.where(chosen, distances, 0).sum() / jnp.maximum(number, 1)
    # The mean of equal distances is one of them, whatever rounding makes of their sum.
    return _Spread(number, least, greatest, jnp.clip(mean, least, greatest))


def _squares(distances: jax.Array, same: jax.Array, margin: float) -> jax.Array:
    """The square of each pair's distance, or of what is missing of the margin."""
    return jnp.where(same, distances, jax.nn.relu(margin - distances)) ** 2
