"""SDML over scores from matrix products, with the uniform prior, in tiles; gradient by hand.

`autodiff_tiles.sum_in_tiles` does the same for any loss. This is faster for one: candidates are
the first axis of a tile, which suits matrix products, both directions share one product, and the
slopes of a tile are computed in one pass.

With s_j = |y_j|^2 and r_t = |x_t|^2, the logit of candidate j for query t is 2 x_t.y_j - s_j, and
that of query t for candidate j is 2 x_t.y_j - r_t. These are squared distances; of halved queries
and without the squares they are dot products.
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
from qpr_jax.losses.distances import gather, non_negatives, products
from qpr_jax.tiles import join_tiles
from qpr_jax.tuning import Tuning

_ROUNDING = 4e-6  # of a sum of probabilities, where logits are small enough to be exact


class Pairs(NamedTuple):
    """The pairs of this device, with a common center.

    Attributes:
      queries: float32 [n, d].
      candidates: float32 [n, d], row i of the pair of query i.
      query_squares: float32 [n], up to a constant, or 0 for dot products.
      candidate_squares: float32 [n], likewise.
    """

    queries: jax.Array
    candidates: jax.Array
    query_squares: jax.Array
    candidate_squares: jax.Array


class Candidates(NamedTuple):
    """The candidates of all devices: vectors float32 [N, d] and squares float32 [N]."""

    vectors: jax.Array
    squares: jax.Array


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
      tuning: of the matrix products; None: of JAX's first device.
    """

    smoothing: float
    symmetric: bool
    tile: int
    axis_name: Hashable | None
    precision: lax.PrecisionLike
    tuning: Tuning | None = None


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
    paired = 2 * (pairs.queries * pairs.candidates).sum(axis=1)
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
        positive = 2 * (part.queries * part.candidates).sum(axis=1) - part.candidate_squares
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
        vectors_slope = 2 * product(slope, part.queries)
        queries_slope = 2 * product(candidates.vectors.T, slope).T
        added = (divergences.sum(), Candidates(vectors_slope, candidate_squares_slope))
        return jax.tree.map(jnp.add, total, added), (queries_slope, query_squares_slope, pull)

    start = (value, jax.tree.map(jnp.zeros_like, candidates))
    (value, candidates_slope), by_tile = lax.scan(step, start, tiles)
    queries_slope, query_squares_slope, pull = (join_tiles(array, count) for array in by_tile)
    product_slope = 2 * (product_slope + pull)[:, None]
    pairs_slope = Pairs(
        queries_slope + product_slope * pairs.candidates,
        product_slope * pairs.queries,
        query_squares_slope + query_square_slope,
        -pull,
    )
    return value, (pairs_slope, candidates_slope)


def _backward(
    options: Options, gradients: tuple[Pairs, Candidates], weight: jax.Array
) -> tuple[Any, Any, None]:
    return *jax.tree.map(lambda gradient: weight * gradient, gradients), None


tiled_softmax_sum.defvjp(_forward, _backward)


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
    hidden = non_negatives(own[:, None], len(logits), clusters).T | ~live[None]
    return logits, hidden


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
