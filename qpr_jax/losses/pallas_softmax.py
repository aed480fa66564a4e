"""SDML over scores from matrix products, with the uniform prior, as fused GPU kernels.

The same value and gradient as `tiled_softmax`, which is the reference, without scores in device
memory: arrays are of [n], [N], [n, d] and [N, d]. See `pallas_kernels` for how.

With w_tj the slope of the sum in the product 2 x_t.y_j, both directions added, the gradient is
2 sum_j w_tj (y_j - x_t) for query t, and 2 sum_t w_tj (x_t - y_j) for candidate j. The kernels give
the part of the other side, the slopes of the squares give that of the own side. Slopes of a
direction sum to 0 over its candidates, so that those of both can be used for the squares of either.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.losses.centers import Candidates, Pairs
from qpr_jax.losses.distances import gather
from qpr_jax.losses.pallas_blocks import block_sizes, padded_width, precision_name
from qpr_jax.losses.pallas_kernels import LOG2E, Side, softmax_products, softmax_sums, split
from qpr_jax.losses.tiled_softmax import (
    Negatives,
    Options,
    Rows,
    divergence,
    over_devices,
)

_ROWS = 128  # padding, a multiple of every block


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def pallas_softmax_sum(
    pairs: Pairs, candidates: Candidates, rows: Rows, options: Options
) -> jax.Array:
    """Sum the divergences of this device's queries and, if `symmetric`, of its candidates."""
    return _forward(pairs, candidates, rows, options)[0]


def _forward(
    pairs: Pairs, candidates: Candidates, rows: Rows, options: Options
) -> tuple[jax.Array, Any]:
    queries, others = _sides(pairs, candidates, rows, options)
    numbers = _numbers(queries.keys[: len(rows.own)], others.keys[: len(candidates.squares)], rows)
    of_queries = _negatives(queries, others, numbers[0], options)
    positive = _positive(pairs)[0]
    value = divergence(of_queries, positive, options.smoothing)[0].sum()
    of_candidates = None
    if options.symmetric:
        found = _negatives(others, queries, numbers[1], options)
        of_candidates = over_devices(found, options.axis_name)
        own = jax.tree.map(lambda array: array[rows.own], of_candidates)
        value += divergence(own, _positive(pairs)[1], options.smoothing)[0].sum()
    return value, (pairs, candidates, rows, of_queries, of_candidates)


def _backward(options: Options, saved: Any, weight: jax.Array) -> tuple[Any, Any, None]:
    pairs, candidates, rows, of_queries, of_candidates = saved
    smoothing, count = options.smoothing, len(rows.own)
    queries, others = _sides(pairs, candidates, rows, options)
    positive, positive_back = _positive(pairs)
    pull = divergence(of_queries, positive, smoothing)[1]
    queries = _with_softmax(queries, of_queries, positive, count, smoothing)
    if of_candidates is not None:
        own = jax.tree.map(lambda array: array[rows.own], of_candidates)
        pull += divergence(own, positive_back, smoothing)[1]
        # Candidates beyond the pairs have no query, so they are no anchors.
        all_positive = gather(positive_back, count, options.axis_name)
        others = _with_softmax(others, of_candidates, all_positive, len(all_positive), smoothing)
    queries_slope, query_sums = _products(queries, others, (True, options.symmetric), options)
    others_slope, candidate_sums = _products(others, queries, (options.symmetric, True), options)
    number, width = candidates.vectors.shape
    pulled = 2 * pull[:, None]
    slopes = (
        Pairs(
            2 * queries_slope[:count, :width] + pulled * pairs.candidates,
            pulled * pairs.queries,
            -(query_sums[:count] + pull),
            -pull,
        ),
        Candidates(2 * others_slope[:number, :width], -candidate_sums[:number]),
    )
    return *jax.tree.map(lambda slope: weight * slope, slopes), None


pallas_softmax_sum.defvjp(_forward, _backward)


def _positive(pairs: Pairs) -> tuple[jax.Array, jax.Array]:
    """The logits of the pairs: of the candidate for the query, and of the query for it."""
    product = 2 * (pairs.queries * pairs.candidates).sum(axis=1)
    return product - pairs.candidate_squares, product - pairs.query_squares


def _sides(pairs: Pairs, candidates: Candidates, rows: Rows, options: Options) -> tuple[Side, Side]:
    """Both sides without their softmax."""
    own = jnp.arange(len(candidates.squares), dtype=jnp.int32)
    # A row without a cluster is one of its own.
    clusters = -2 - own if rows.clusters is None else rows.clusters[: len(own)].astype(jnp.int32)
    keys = jnp.where(clusters < 0, -2 - own, clusters)
    return (
        _side(pairs.queries, pairs.query_squares, keys[rows.own], options),
        _side(candidates.vectors, candidates.squares, keys, options),
    )


def _side(vectors: jax.Array, squares: jax.Array, keys: jax.Array, options: Options) -> Side:
    rows, width = len(keys), vectors.shape[1]
    extra = -rows % _ROWS
    vectors = jnp.pad(vectors, ((0, extra), (0, padded_width(width) - width)))
    none = jnp.zeros_like(squares, shape=rows + extra)
    side = Side(
        split(vectors, precision_name(options.precision)),
        jnp.pad(keys, (0, extra), constant_values=-1),
        jnp.pad(LOG2E * squares, (0, extra)),
        none + jnp.inf,
        none,
    )
    if options.axis_name is None:
        return side
    return jax.tree.map(lambda array: _varying(array, options.axis_name), side)


def _varying(array: jax.Array, axis_name: Hashable) -> jax.Array:
    """Mark an array as one that differs between devices, as all inputs of a kernel must be."""
    varying = axis_name in jax.typeof(array).manual_axis_type.varying
    return array if varying else lax.pcast(array, axis_name, to="varying")


def _with_softmax(
    side: Side, negatives: Negatives, positive: jax.Array, anchors: int, smoothing: float
) -> Side:
    """The side with the sums of its first `anchors` rows; the others are no anchors."""
    extra = (0, len(side.keys) - anchors)
    lse = LOG2E * jnp.logaddexp(negatives.lse[:anchors], positive)
    share = smoothing / (negatives.number[:anchors] + 1)
    return side._replace(
        lse=jnp.pad(lse, extra, constant_values=jnp.inf), share=jnp.pad(share, extra)
    )


def _numbers(queries: jax.Array, others: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """The number of negatives of each query, and of each candidate on this device, by keys."""

    def hits(keys: jax.Array, of: jax.Array) -> jax.Array:
        ordered = jnp.sort(of)
        first, last = (jnp.searchsorted(ordered, keys, side=side) for side in ("left", "right"))
        return last - first

    if rows.clusters is None:  # without sorting
        of_queries = jnp.ones_like(queries)
        of_candidates = jnp.zeros_like(others).at[rows.own].set(1)
    else:
        of_queries, of_candidates = hits(queries, others), hits(others, queries)
    return (
        (len(others) - of_queries).astype(jnp.float32),
        (len(queries) - of_candidates).astype(jnp.float32),
    )


def _negatives(anchors: Side, others: Side, number: jax.Array, options: Options) -> Negatives:
    """The sums of each anchor over its negatives among the others on this device."""
    totals = options.smoothing > 0
    lse, total = _on_platform(softmax_sums, anchors, others, options, totals=totals)
    # The mass is not read: slopes of the kernels multiply differences, and need no balance.
    return Negatives(lse[: len(number)], jnp.ones_like(number), total[: len(number)], number)


def _products(
    anchors: Side, others: Side, directions: tuple[bool, bool], options: Options
) -> tuple[jax.Array, jax.Array]:
    return _on_platform(softmax_products, anchors, others, options, directions=directions)


def _on_platform(
    kernel: Any, anchors: Side, others: Side, options: Options, **constants: Any
) -> tuple[jax.Array, jax.Array]:
    """The kernel on a GPU; on a CPU what it does, step by step and slowly."""
    precision = precision_name(options.precision)
    blocks = block_sizes(anchors.parts[0].shape[1], precision)
    run = functools.partial(kernel, blocks=blocks, precision=precision, **constants)
    return lax.platform_dependent(
        anchors,
        others,
        cpu=functools.partial(run, interpret=True),
        default=functools.partial(run, interpret=False),
    )
