"""SDML over scores from matrix products, with the uniform prior, in tiles; gradient by hand.

`autodiff_tiles.sum_in_tiles` does the same for any loss. This is faster for one: candidates are
the first axis of a tile, which suits matrix products, both directions share one product, and the
slopes of a tile are computed in one pass.

With s_j = |y_j|^2 and r_t = |x_t|^2, the logit of candidate j for query t is 2 x_t.y_j - s_j, and
that of query t for candidate j is 2 x_t.y_j - r_t. These are squared distances; of halved queries
and without the squares they are dot products. Vectors of two far groups are each given from the
center of their group, see `centers.Membership`.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import entr

from qpr_jax.losses.autodiff_tiles import split_tiles
from qpr_jax.losses.centers import Candidates, Membership, Pairs, across, outer
from qpr_jax.losses.distances import gather, non_negatives, products
from qpr_jax.tiles import join_tiles
from qpr_jax.tuning import Tuning

_ROUNDING = 4e-6  # of a sum of probabilities, where logits are small enough to be exact


class Rows(NamedTuple):
    """Rows of this device's pairs among all candidates, int32 [n]; clusters of all, int32 [N]."""

    own: jax.Array
    clusters: jax.Array | None


class Negatives(NamedTuple):
    """Sums over the negatives of each anchor; an anchor's own candidate is none."""

    lse: jax.Array  # log of the sum of exp(logit)
    mass: jax.Array  # sum of exp(logit - lse): 1 but for the rounding of lse
    total: jax.Array  # sum of the logits
    number: jax.Array


class Options(NamedTuple):
    """The constants of the loss.

    Attributes:
      smoothing: mass that the target spreads over all candidates.
      symmetric: whether to add the divergences of candidates against all queries.
      tile: rows of a tile.
      axis_name: the mapped axis that the batch is split over, if any.
      precision: of the matrix products.
      tuning: the platform, and its constants of the matrix products.
    """

    smoothing: float
    symmetric: bool
    tile: int
    axis_name: Hashable | None
    precision: lax.PrecisionLike
    tuning: Tuning


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def tiled_softmax_sum(
    pairs: Pairs, candidates: Candidates, rows: Rows, options: Options
) -> jax.Array:
    """Sum the divergences of this device's queries and, if `symmetric`, of its candidates."""
    return _forward(pairs, candidates, rows, options)[0]


def _forward(
    pairs: Pairs, candidates: Candidates, rows: Rows, options: Options
) -> tuple[jax.Array, tuple[Pairs, Candidates]]:
    smoothing, symmetric, tile, axis_name, *_ = options
    product = functools.partial(jnp.matmul, precision=options.precision)
    count = len(rows.own)
    tiles = split_tiles((pairs, rows.own), count, tile)
    paired = _paired(pairs)
    # Gradients of the pairs' own logits: of the product, and of the squared query.
    value, product_slope = jnp.zeros_like(paired).sum(), jnp.zeros_like(paired)
    query_square_slope = jnp.zeros_like(paired)
    if symmetric:
        back = _negatives_of_candidates(tiles, candidates, rows.clusters, options)
        positive = paired - pairs.query_squares
        own_back = jax.tree.map(lambda array: array[rows.own], back)
        divergences, pull = divergence(own_back, positive, smoothing)
        value += divergences.sum()
        product_slope += pull
        query_square_slope -= pull
        all_positive = gather(positive, count, axis_name)
        # Candidates beyond the pairs have no query, so they are no anchors.
        extra = (0, len(candidates.squares) - len(all_positive))
        anchors = jnp.arange(len(candidates.squares)) < len(all_positive)
        push_back = _push(back, jnp.pad(all_positive, extra))
        push_back = jnp.where(anchors, push_back, 0)
        share_back = jnp.where(anchors, smoothing / (back.number + 1), 0)

    def step(total: Any, inputs: Any) -> Any:
        part, own, live = inputs
        logits, hidden = _logits(part, own, live, candidates, rows.clusters, options)
        negatives = _negatives(logits, hidden, axis=0)
        positive = _paired(part) - part.candidate_squares
        divergences, pull = divergence(negatives, positive, smoothing)
        divergences, pull = jnp.where(live, divergences, 0), jnp.where(live, pull, 0)
        push, share = _push(negatives, positive), smoothing / (negatives.number + 1)
        slope = push[None] * jnp.exp(logits - negatives.lse[None]) - share[None]
        slope = jnp.where(hidden, 0, slope)
        candidate_squares_slope = -slope.sum(axis=1)
        query_squares_slope = jnp.zeros_like(pull)
        if symmetric:
            logits_back = logits + (candidates.squares[:, None] - part.query_squares[None])
            slope_back = push_back[:, None] * jnp.exp(logits_back - back.lse[:, None])
            slope_back = jnp.where(hidden, 0, slope_back - share_back[:, None])
            query_squares_slope = -slope_back.sum(axis=0)
            slope += slope_back
        candidates_reach, queries_reach = _reach_slopes(slope, candidates.group, part.query_group)
        vectors_slope = 2 * product(slope, part.queries)
        queries_slope = 2 * product(candidates.vectors.T, slope).T
        by_candidate = Candidates(vectors_slope, candidate_squares_slope, candidates_reach)
        added = (divergences.sum(), by_candidate)
        by_query = (queries_slope, query_squares_slope, pull, queries_reach)
        return jax.tree.map(jnp.add, total, added), by_query

    start = (value, jax.tree.map(jnp.zeros_like, candidates))
    (value, candidates_slope), by_tile = lax.scan(step, start, tiles)
    queries_slope, query_squares_slope, pull, queries_reach = jax.tree.map(
        lambda array: join_tiles(array, count), by_tile
    )
    product_slope += pull
    own_reach = _across_slope(product_slope, pairs.query_group, pairs.candidate_group)
    product_slope = 2 * product_slope[:, None]
    pairs_slope = Pairs(
        queries_slope + product_slope * pairs.candidates,
        product_slope * pairs.queries,
        query_squares_slope + query_square_slope,
        -pull,
        jax.tree.map(jnp.add, queries_reach, own_reach),
        own_reach,
    )
    return value, (pairs_slope, candidates_slope)


def _backward(
    options: Options, gradients: tuple[Pairs, Candidates], weight: jax.Array
) -> tuple[Any, Any, None]:
    return *jax.tree.map(lambda gradient: weight * gradient, gradients), None


tiled_softmax_sum.defvjp(_forward, _backward)


def _paired(pairs: Pairs) -> jax.Array:
    """The products of the pairs, 2 x_i.y_i, as of vectors with one center."""
    products = 2 * (pairs.queries * pairs.candidates).sum(axis=1)
    return products - across(pairs.query_group, pairs.candidate_group)


def _logits(
    part: Pairs,
    own: jax.Array,
    live: jax.Array,
    candidates: Candidates,
    clusters: jax.Array | None,
    options: Options,
) -> tuple[jax.Array, jax.Array]:
    """The logits of a tile's queries, [N, t], and a mask of those that are not of negatives."""
    logits = 2 * products(candidates.vectors, part.queries, options.precision, options.tuning)
    logits -= candidates.squares[:, None]
    logits -= across(*outer(candidates.group, part.query_group))
    hidden = non_negatives(own[:, None], len(logits), clusters).T | ~live[None]
    return logits, hidden


def _across_slope(
    slope: jax.Array, rows: Membership | None, others: Membership | None
) -> Membership | None:
    """The slopes, in either reach, of minus `across`."""
    if rows is None or others is None:
        return None
    slope = jnp.where(rows.sign != others.sign, -slope, 0)
    return Membership(jnp.zeros_like(slope), slope)


def _reach_slopes(
    slope: jax.Array, rows: Membership | None, columns: Membership | None
) -> tuple[Membership | None, Membership | None]:
    """The slopes in the reach of the rows and of the columns of logits with that slope."""
    each = _across_slope(slope, *outer(rows, columns))
    by_row, by_column = (jax.tree.map(lambda a, k=axis: a.sum(axis=k), each) for axis in (1, 0))
    return by_row, by_column


def _negatives(logits: jax.Array, hidden: jax.Array, axis: int) -> Negatives:
    shown = jnp.where(hidden, -jnp.inf, logits)
    most = shown.max(axis=axis)
    most = jnp.where(jnp.isfinite(most), most, 0)
    scaled = jnp.exp(shown - jnp.expand_dims(most, axis)).sum(axis=axis)
    lse = jnp.log(scaled) + most
    return Negatives(
        lse,
        scaled * jnp.exp(most - lse),
        jnp.where(hidden, 0, logits).sum(axis=axis),
        # Whole numbers, since XLA would write the mask as floating numbers to sum these.
        (~hidden).sum(axis=axis, dtype=jnp.int32).astype(logits.dtype),
    )


def _join(parts: Negatives, lse: jax.Array) -> Negatives:
    """The sums over the negatives of all parts, each array [parts, N], with their joint `lse`."""
    share = jnp.where(parts.number > 0, jnp.exp(parts.lse - lse[None]), 0)
    mass = (parts.mass * share).sum(axis=0)
    return Negatives(lse, mass, parts.total.sum(axis=0), parts.number.sum(axis=0))


def _push(negatives: Negatives, positive: jax.Array) -> jax.Array:
    """The factor of each negative's exp(logit - lse) in the slopes of its anchor.

    It is the probability of all negatives over their mass, so that their slopes balance that of the
    positive. Large logits round `lse`, and without the mass what is left of the balance would be
    multiplied by vectors that lie far from the center. A mass within rounding of 1 is taken for 1.
    """
    mass = jnp.where(jnp.abs(negatives.mass - 1) > _ROUNDING, negatives.mass, 1)
    return jax.nn.sigmoid(negatives.lse - positive) / mass


def divergence(
    negatives: Negatives, positive: jax.Array, smoothing: float
) -> tuple[jax.Array, jax.Array]:
    """The divergence of each anchor, and its slope in the logit of the anchor's positive."""
    count = negatives.number + 1
    value = jax.nn.softplus(negatives.lse - positive)
    value += smoothing * (positive - (negatives.total + positive) / count)
    value -= target_entropy(count, smoothing)
    return value, smoothing - smoothing / count - jax.nn.sigmoid(negatives.lse - positive)


def target_entropy(count: jax.Array, smoothing: float) -> jax.Array:
    """The entropy of uniformly smoothed targets over `count` candidates, in nats."""
    other = smoothing / count
    return entr(1 - smoothing + other) + (count - 1) * entr(other)


def _negatives_of_candidates(
    tiles: Any,
    candidates: Candidates,
    clusters: jax.Array | None,
    options: Options,
) -> Negatives:
    """The sums of each candidate over its negatives among the queries of all devices, [N]."""

    def step(total: Negatives, inputs: Any) -> tuple[Negatives, None]:
        part, own, live = inputs
        logits, hidden = _logits(part, own, live, candidates, clusters, options)
        logits += candidates.squares[:, None] - part.query_squares[None]
        found = _negatives(logits, hidden, axis=1)
        both = jax.tree.map(lambda *parts: jnp.stack(parts), total, found)
        return _join(both, jnp.logaddexp(total.lse, found.lse)), None

    zeros = jnp.zeros_like(candidates.squares)
    found, _ = lax.scan(step, Negatives(zeros - jnp.inf, zeros, zeros, zeros), tiles)
    return over_devices(found, options.axis_name)


def over_devices(found: Negatives, axis_name: Hashable | None) -> Negatives:
    """The sums over the negatives of all devices."""
    if axis_name is None:
        return found
    parts = lax.all_gather(found, axis_name)
    return _join(parts, jax.nn.logsumexp(parts.lse, axis=0))
