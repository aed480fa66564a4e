"""Vectors from a center, or of two far groups from a center for each, for SDML's scores."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.losses.distances import mean_vector, round_down
from qpr_jax.losses.tiled_softmax import Candidates, Pairs, Side

_FAR = 64.0  # squared distance of groups from which each has a center of its own


def center(
    queries: jax.Array, candidates: jax.Array, all_candidates: jax.Array, distance: str
) -> tuple[Pairs, Candidates]:
    """Center the vectors where that changes no distance, and compute their squares."""
    if distance == "dot":
        # 2 x.y - |y|^2 becomes exactly x.y. A dot product depends on the origin, so nothing is
        # subtracted.
        own = candidates[: len(queries)]
        none = [jnp.zeros_like(side[:, 0]) for side in (queries, own, all_candidates)]
        return Pairs(queries / 2, own, none[0], none[1]), Candidates(all_candidates, none[2])
    if distance == "ssd":
        # Subtracting one vector from all changes no distance. Without it, the expanded square of a
        # large common offset would lose them to rounding. ("euc" needs the vectors as they are:
        # `squared_distances` subtracts vectors that nearly coincide.)
        mean = mean_vector(all_candidates)[None]
        queries, candidates, all_candidates = (
            side - mean for side in (queries, candidates, all_candidates)
        )
    return _with_squares(queries, candidates, all_candidates)


class Groups(NamedTuple):
    """The centers of two groups [2, d], split by a plane through a point [d] with a normal [d]."""

    centers: jax.Array
    point: jax.Array
    normal: jax.Array


def far_groups(vectors: jax.Array) -> tuple[jax.Array, Groups]:
    """Split vectors [N, d] in two by a plane, across the vector farthest from their mean.

    Returns:
      Whether the groups lie so far apart, for their extent, that the squares of their distance
      would round those within a group; and the groups, constants for the gradient.
    """
    point = mean_vector(vectors)
    vectors = lax.stop_gradient(vectors) - point[None]
    squares = (vectors**2).sum(axis=1)
    normal = vectors[squares.argmax()]
    group = _beyond(vectors, normal).astype(vectors.dtype)
    number = jnp.stack([len(group) - group.sum(), group.sum()]).clip(1)[:, None]
    # Of centered vectors, the sum of one group is minus that of the other.
    total = (group[:, None] * vectors).sum(axis=0)
    means = jnp.stack([-total, total]) / number
    gap = ((means[1] - means[0]) ** 2).sum()
    extent = (squares.sum() - (number * means**2).sum()) / len(vectors)
    far = (gap > _FAR) & (gap > 16 * extent)
    return far, Groups(round_down(point[None] + means), point, normal)


def center_groups(
    queries: jax.Array,
    candidates: jax.Array,
    all_candidates: jax.Array,
    groups: Groups,
) -> tuple[Pairs, Candidates]:
    """As `center` for "ssd", but with a center for each of two far groups."""
    between = groups.centers[1] - groups.centers[0]

    def from_center(vectors: jax.Array) -> tuple[jax.Array, Side]:
        second = _beyond(vectors - groups.point[None], groups.normal)
        sign = jnp.where(second, 1, -1).astype(vectors.dtype)
        vectors -= jnp.where(second[:, None], groups.centers[1:], groups.centers[:1])
        reach = 2 * sign * (vectors * between[None]).sum(axis=1) + (between**2).sum() / 2
        return vectors, Side(sign, reach)

    (queries, query_side), (candidates, side), (all_candidates, all_sides) = map(
        from_center, (queries, candidates, all_candidates)
    )
    pairs, targets = _with_squares(queries, candidates, all_candidates)
    own_side = jax.tree.map(lambda array: array[: len(queries)], side)
    pairs = pairs._replace(query_side=query_side, candidate_side=own_side)
    return pairs, targets._replace(side=all_sides)


def _beyond(vectors: jax.Array, normal: jax.Array) -> jax.Array:
    """Whether vectors [n, d] lie beyond the plane through the origin with a normal [d]."""
    return (vectors * normal[None]).sum(axis=1) > 0  # not a product, which a GPU may round


def _with_squares(
    queries: jax.Array, candidates: jax.Array, all_candidates: jax.Array
) -> tuple[Pairs, Candidates]:
    # The mean square of each dimension is subtracted, so that no large number is rounded.
    mean = lax.stop_gradient((all_candidates**2).mean(axis=0, keepdims=True))
    own = candidates[: len(queries)]
    squares = [(side**2 - mean).sum(axis=1) for side in (queries, own, all_candidates)]
    return Pairs(queries, own, squares[0], squares[1]), Candidates(all_candidates, squares[2])
