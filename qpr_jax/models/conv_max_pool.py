"""A convolution from products of single tokens, its maximum over time, and the gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.arrays import in_tiles, join_tiles

# (weights, the maxima [n, f] of each kernel, ids [n, L]) -> [n, d].
Head = Callable[[Any, list[jax.Array], jax.Array], jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def conv_max_pool(
    head: Head,
    kernel_sizes: tuple[int, ...],
    chunk: int,
    max_scores: int,
    tables: list[jax.Array],
    weights: Any,
    blocks: tuple[jax.Array, ...],
) -> jax.Array:
    """Convolve by adding table rows, take the maximum over time, and apply `head`.

    The score of a position is the sum of the products of the tokens that the kernel covers. Where
    positions tie, the gradient goes to the first.

    Args:
      head: maps the maxima of questions to vectors, each question by itself.
      kernel_sizes: tokens that a position covers, for each table.
      chunk: process at most this number of questions at a time, store none of their maxima and
        recompute them for the gradient. 0: store the maxima.
      max_scores: scores, positions times filters, in memory at a time, which bounds the questions
        that are processed at a time.
      tables: float32 [U * size, f] each; row u * size + k is the product of token u with the k-th
        slice of a kernel; token 0 is padding.
      weights: of `head`, a tree of floating arrays. In a mapped function they must vary over the
        devices as the tables do (`lax.pcast`).
      blocks: int32 [n_b, L_b] each, tokens of the tables, zero-padded on the right.

    Returns:
      float32 [sum of n_b, d].

    Source of the chunks: Gao, Zhang, Han and Callan (2021), "Scaling Deep Contrastive Learning
    Batch Size under Memory Limited Setup".
    """
    return _forward(head, kernel_sizes, chunk, max_scores, tables, weights, blocks)[0]


def _forward(
    head: Head,
    kernel_sizes: tuple[int, ...],
    chunk: int,
    max_scores: int,
    tables: list[jax.Array],
    weights: Any,
    blocks: tuple[jax.Array, ...],
) -> tuple[jax.Array, Any]:
    def encode(ids: jax.Array) -> Any:
        pooled = _maxima(tables, kernel_sizes, ids)
        return head(weights, pooled[0], ids), None if chunk else pooled

    vectors, stored = [], []
    for block in blocks:
        size = _tile_size(block, tables, chunk, max_scores)
        result, pooled = lax.map(encode, in_tiles(block, size))
        vectors.append(join_tiles(result, len(block)))
        stored.append(pooled)
    return jnp.concatenate(vectors), (tables, weights, blocks, stored)


def _backward(
    head: Head,
    kernel_sizes: tuple[int, ...],
    chunk: int,
    max_scores: int,
    residuals: Any,
    gradient: jax.Array,
) -> tuple[Any, Any, None]:
    tables, weights, blocks, stored = residuals

    def step(sums: Any, inputs: Any) -> tuple[Any, None]:
        table_gradients, weight_gradients = sums
        ids, gradient, pooled = inputs
        maxima, positions = pooled or _maxima(tables, kernel_sizes, ids)
        head_vjp = jax.vjp(lambda w, m: head(w, m, ids), weights, maxima)[1]
        added, maxima_gradients = head_vjp(gradient)
        by_table = zip(table_gradients, kernel_sizes, positions, maxima_gradients, strict=True)
        table_gradients = [_scatter_gradient(*inputs, ids) for inputs in by_table]
        return (table_gradients, jax.tree.map(jnp.add, weight_gradients, added)), None

    # One sum for all blocks: a table is the largest array of a step.
    sums = jax.tree.map(jnp.zeros_like, (tables, weights))
    start = 0
    for block, pooled in zip(blocks, stored, strict=True):
        size = _tile_size(block, tables, chunk, max_scores)
        block_gradient = gradient[start : start + len(block)]
        inputs = (in_tiles(block, size), in_tiles(block_gradient, size), pooled)
        sums, _ = lax.scan(step, sums, inputs)
        start += len(block)
    return *sums, None


conv_max_pool.defvjp(_forward, _backward)


def _tile_size(block: jax.Array, tables: list[jax.Array], chunk: int, max_scores: int) -> int:
    """How many questions of a block are encoded at a time."""
    scores = max(1, block.shape[1]) * max(table.shape[1] for table in tables)
    return max(1, min(chunk or len(block), max_scores // scores))


def _table_rows(ids: jax.Array, size: int) -> list[jax.Array]:
    """The table's row for each place of the kernel at each position, [n, L] each."""
    left = size // 2
    padded = jnp.pad(ids, ((0, 0), (left, size - 1 - left)))
    return [padded[:, k : k + ids.shape[1]] * size + k for k in range(size)]


def _maxima(
    tables: list[jax.Array], kernel_sizes: tuple[int, ...], ids: jax.Array
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The maxima of each kernel and their positions, [n, f] each."""
    pooled = [_maximum(table, size, ids) for table, size in zip(tables, kernel_sizes, strict=True)]
    maxima, positions = zip(*pooled, strict=True)
    return list(maxima), list(positions)


def _maximum(table: jax.Array, size: int, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    scores = functools.reduce(jnp.add, (table[rows] for rows in _table_rows(ids, size)))
    positions = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    own = (ids > 0)[:, :, None] | (positions == 0)
    scores = jnp.where(own, scores, -jnp.inf)
    # Two reductions, since one over pairs of value and position is four times slower.
    maximum = scores.max(axis=1)
    candidates = jnp.where(scores == maximum[:, None], positions, ids.shape[1])
    return maximum, candidates.min(axis=1)


def _scatter_gradient(
    table: jax.Array, size: int, position: jax.Array, gradient: jax.Array, ids: jax.Array
) -> jax.Array:
    """Add the gradient of the maxima of some questions to the table's gradient."""
    filters = jnp.arange(table.shape[1])[None]
    # Each filter's gradient goes to the tokens of one position only: scattering single numbers
    # takes a quarter of the time of scattering whole rows, which are mostly 0.
    for rows in _table_rows(ids, size):
        table = table.at[jnp.take_along_axis(rows, position, axis=1), filters].add(gradient)
    return table
