"""Vectors from a center, or of two far groups from a center for each, for SDML's scores."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.losses.distances import mean_vector, round_down

_FAR = 64.0  # squared distance of groups from which each has a center of its own


class Membership(NamedTuple):
    """Which of two groups each vector is of, where the groups have a center each.

    Let c_p be the center of group p. For x = c_p + u and y = c_q + v of two groups, |x - y|^2 is
    |u - v|^2 plus the reach of x plus that of y; in one group it is |u - v|^2. The large terms of
    far groups thus stay out of the logits within a group, which they would round.

    Attributes:
      sign: floating [n], 1 or -1, the group.
      reach: floating [n], 2 (c_p - c_q).u + |c_p - c_q|^2 / 2 for a vector of p, with q the other.
    """

    sign: jax.Array
    reach: jax.Array


class Pairs(NamedTuple):
    """The pairs of this device, with a common center or, given groups, one for each.

    Attributes:
      queries: float32 [n, d].
      candidates: float32 [n, d], row i of the pair of query i.
      query_squares: float32 [n], up to a constant, or 0 for dot products.
      candidate_squares: float32 [n], likewise.
      query_group: the group of each query; None: all have one center.
      candidate_group: likewise.
    """

    queries: jax.Array
    candidates: jax.Array
    query_squares: jax.Array
    candidate_squares: jax.Array
    query_group: Membership | None = None
    candidate_group: Membership | None = None


class Candidates(NamedTuple):
    """The candidates of all devices: vectors float32 [N, d], squares float32 [N] and groups."""

    vectors: jax.Array
    squares: jax.Array
    group: Membership | None = None


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

    def from_center(vectors: jax.Array) -> tuple[jax.Array, Membership]:
        second = _beyond(vectors - groups.point[None], groups.normal)
        sign = jnp.where(second, 1, -1).astype(vectors.dtype)
        vectors -= jnp.where(second[:, None], groups.centers[1:], groups.centers[:1])
        reach = 2 * sign * (vectors * between[None]).sum(axis=1) + (between**2).sum() / 2
        return vectors, Membership(sign, reach)

    (queries, query_group), (candidates, group), (all_candidates, all_groups) = map(
        from_center, (queries, candidates, all_candidates)
    )
    pairs, targets = _with_squares(queries, candidates, all_candidates)
    own_group = jax.tree.map(lambda array: array[: len(queries)], group)
    pairs = pairs._replace(query_group=query_group, candidate_group=own_group)
    return pairs, targets._replace(group=all_groups)


def across(rows: Membership | None, others: Membership | None) -> jax.Array | float:
    """What is added to the squared distances of vectors from their centers; 0 within a group."""
    if rows is None or others is None:
        return 0.0
    return jnp.where(rows.sign != others.sign, rows.reach + others.reach, 0)


def outer(
    rows: Membership | None, columns: Membership | None
) -> tuple[Membership | None, Membership | None]:
    """The groups as a column and as a row, for all pairs of both."""
    column = jax.tree.map(lambda array: array[:, None], rows)
    return column, jax.tree.map(lambda array: array[None], columns)


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
