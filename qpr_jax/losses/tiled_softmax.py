"""SDML over logits of products, with the uniform prior, in tiles, its gradient by hand.

What `streaming.summed_by_tiles` does for any loss, in less time for this one: candidates are the
first axis of a tile, which matrix products like best, the two directions share one product, and
the slopes of a tile are made in one pass.

With s_j = |y_j|^2 and r_t = |x_t|^2, query t meets the candidates j with the logits
2 x_t.y_j - s_j, and candidate j the queries t with 2 x_t.y_j - r_t. Those are squared distances; of
halved queries, and with no squares, they are dot products.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import entr

from qpr_jax.losses.autodiff_tiles import live_tiles
from qpr_jax.losses.distances import gather, left_out, products
from qpr_jax.tiles import joined


class Pairs(NamedTuple):
    """This device's pairs: vectors [n, d] of one centre, squares [n] up to a constant, or 0."""

    queries: jax.Array
    candidates: jax.Array
    query_squares: jax.Array
    candidate_squares: jax.Array


class Candidates(NamedTuple):
    """The candidates of all devices, [N, d] and [N]."""

    vectors: jax.Array
    squares: jax.Array


class Numbers(NamedTuple):
    """Places of this device's pairs among the candidates, int32 [n]; clusters int32 [N]."""

    own: jax.Array
    clusters: jax.Array | None


class Others(NamedTuple):
    """What an anchor finds among the candidates that are not its own, an entry an anchor."""

    lse: jax.Array  # log of the sum of exp(logit)
    total: jax.Array  # of the logits
    number: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6, 7))
def summed_by_hand(
    pairs: Pairs,
    candidates: Candidates,
    numbers: Numbers,
    smoothing: float,
    symmetric: bool,
    tile: int,
    axis_name: Hashable | None,
    precision: lax.PrecisionLike,
) -> jax.Array:
    """The divergences of this device's queries, summed; with `symmetric`, of its candidates too."""
    how = (smoothing, symmetric, tile, axis_name, precision)
    return _forward(pairs, candidates, numbers, *how)[0]


def _forward(
    pairs: Pairs,
    candidates: Candidates,
    numbers: Numbers,
    smoothing: float,
    symmetric: bool,
    tile: int,
    axis_name: Hashable | None,
    precision: lax.PrecisionLike,
) -> tuple[jax.Array, tuple[Pairs, Candidates]]:
    product = functools.partial(jnp.matmul, precision=precision)
    count = len(numbers.own)
    tiles = live_tiles((pairs, numbers.own), count, tile)
    paired = 2 * (pairs.queries * pairs.candidates).sum(axis=1)
    value, to_products = jnp.zeros_like(paired).sum(), jnp.zeros_like(paired)
    to_query_squares = jnp.zeros_like(paired)
    if symmetric:
        back = _queries_of_candidates(tiles, candidates, numbers.clusters, precision, axis_name)
        positive = paired - pairs.query_squares
        mine = jax.tree.map(lambda array: array[numbers.own], back)
        each, pull = _divergence(mine, positive, smoothing)
        value += each.sum()
        to_products += pull
        to_query_squares -= pull
        everyones = gather(positive, count, axis_name)
        # Candidates beyond the pairs are nobody's anchor.
        missing = (0, len(candidates.squares) - len(everyones))
        anchors = jnp.arange(len(candidates.squares)) < len(everyones)
        push_back = jnp.where(anchors, jax.nn.sigmoid(back.lse - jnp.pad(everyones, missing)), 0)
        share_back = jnp.where(anchors, smoothing / (back.number + 1), 0)

    def step(so_far: Any, inputs: Any) -> Any:
        part, own, live = inputs
        logits, hidden = _logits(part, own, live, candidates, numbers.clusters, precision)
        others = _others(logits, hidden, axis=0)
        positive = 2 * (part.queries * part.candidates).sum(axis=1) - part.candidate_squares
        each, pull = _divergence(others, positive, smoothing)
        each, pull = jnp.where(live, each, 0), jnp.where(live, pull, 0)
        push, share = jax.nn.sigmoid(others.lse - positive), smoothing / (others.number + 1)
        slope = push[None] * jnp.exp(logits - others.lse[None]) - share[None]
        slope = jnp.where(hidden, 0, slope)
        of_candidate_squares = -slope.sum(axis=1)
        of_query_squares = jnp.zeros_like(pull)
        if symmetric:
            logits_back = logits + (candidates.squares[:, None] - part.query_squares[None])
            slope_back = push_back[:, None] * jnp.exp(logits_back - back.lse[:, None])
            slope_back = jnp.where(hidden, 0, slope_back - share_back[:, None])
            of_query_squares = -slope_back.sum(axis=0)
            slope += slope_back
        of_vectors = 2 * product(slope, part.queries)
        of_queries = 2 * product(candidates.vectors.T, slope).T
        added = (each.sum(), Candidates(of_vectors, of_candidate_squares))
        return jax.tree.map(jnp.add, so_far, added), (of_queries, of_query_squares, pull)

    start = (value, jax.tree.map(jnp.zeros_like, candidates))
    (value, of_candidates), found = lax.scan(step, start, tiles)
    of_queries, of_query_squares, pull = (joined(array, count) for array in found)
    to_products = 2 * (to_products + pull)[:, None]
    of_pairs = Pairs(
        of_queries + to_products * pairs.candidates,
        to_products * pairs.queries,
        of_query_squares + to_query_squares,
        -pull,
    )
    return value, (of_pairs, of_candidates)


def _backward(
    smoothing: float,
    symmetric: bool,
    tile: int,
    axis_name: Hashable | None,
    precision: lax.PrecisionLike,
    gradients: tuple[Pairs, Candidates],
    weight: jax.Array,
) -> tuple[Any, Any, None]:
    return *jax.tree.map(lambda gradient: weight * gradient, gradients), None


summed_by_hand.defvjp(_forward, _backward)


def _logits(
    part: Pairs,
    own: jax.Array,
    live: jax.Array,
    candidates: Candidates,
    clusters: jax.Array | None,
    precision: lax.PrecisionLike,
) -> tuple[jax.Array, jax.Array]:
    """The queries' logits [N, t], and which of them are not of others: own, of the cluster."""
    logits = 2 * products(candidates.vectors, part.queries, precision)
    logits -= candidates.squares[:, None]
    hidden = left_out(own[:, None], len(logits), clusters).T | ~live[None]
    return logits, hidden


def _others(logits: jax.Array, hidden: jax.Array, axis: int) -> Others:
    return Others(
        jax.nn.logsumexp(jnp.where(hidden, -jnp.inf, logits), axis=axis),
        jnp.where(hidden, 0, logits).sum(axis=axis),
        (~hidden).sum(axis=axis, dtype=jnp.float32),
    )


def _divergence(
    others: Others, positive: jax.Array, smoothing: float
) -> tuple[jax.Array, jax.Array]:
    """The divergence of each anchor, and its slope in the logit of the anchor's own."""
    count = others.number + 1
    value = jax.nn.softplus(others.lse - positive)
    value += smoothing * (positive - (others.total + positive) / count)
    value -= target_entropy(count, smoothing)
    return value, smoothing - smoothing / count - jax.nn.sigmoid(others.lse - positive)


def target_entropy(count: jax.Array, smoothing: float) -> jax.Array:
    """Entropy of uniformly smoothed targets over `count` candidates, in nats."""
    other = smoothing / count
    return entr(1 - smoothing + other) + (count - 1) * entr(other)


def _queries_of_candidates(
    tiles: Any,
    candidates: Candidates,
    clusters: jax.Array | None,
    precision: lax.PrecisionLike,
    axis_name: Hashable | None,
) -> Others:
    """What each candidate finds among the queries of all devices, in a sweep of its own."""

    def step(so_far: Others, inputs: Any) -> tuple[Others, None]:
        part, own, live = inputs
        logits, hidden = _logits(part, own, live, candidates, clusters, precision)
        logits += candidates.squares[:, None] - part.query_squares[None]
        found = _others(logits, hidden, axis=1)
        return Others(
            jnp.logaddexp(so_far.lse, found.lse),
            so_far.total + found.total,
            so_far.number + found.number,
        ), None

    zeros = jnp.zeros_like(candidates.squares)
    found, _ = lax.scan(step, Others(zeros - jnp.inf, zeros, zeros), tiles)
    if axis_name is None:
        return found
    every = lax.all_gather(found.lse, axis_name)
    return Others(
        jax.nn.logsumexp(every, axis=0),
        lax.psum(found.total, axis_name),
        lax.psum(found.number, axis_name),
    )
