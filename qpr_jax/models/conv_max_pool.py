"""The maximum over a question's positions, of sums of its words' products, and what follows it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.tiles import in_tiles, joined

# Sums of all positions and filters that are held at a time: 32 MiB.
MAX_SCORES = 1 << 23

# (weights, the maxima [n, f] of each window, ids [n, L]) -> [n, d].
Head = Callable[[Any, list[jax.Array], jax.Array], jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def conv_max_pool(
    head: Head,
    windows: tuple[int, ...],
    chunk: int,
    tables: list[jax.Array],
    weights: Any,
    blocks: tuple[jax.Array, ...],
) -> jax.Array:
    """`head` of the maxima over time of the questions of all blocks.

    The maximum over a question's positions of the sum, over the window, of its words' products.
    Where positions tie, the gradient goes to the first.

    Args:
      head: what is made of a question's maxima; of each question by itself.
      windows: words that a position covers, for each table.
      chunk: at most so many questions at a time, whose maxima are then made once more for the
        gradient: what is kept of a question is its result alone. 0: nothing is made twice.
      tables: float32 [U * window, f] each; row u * window + k is the product of word u with the
        k-th slice of a kernel; word 0 is padding.
      weights: of `head`, a tree of floating arrays. In a mapped function they differ from device
        to device as the tables do (`lax.pcast` sees to that).
      blocks: int32 [n_b, L_b] each, words of the tables, zero-padded on the right.

    Returns:
      float32 [sum of n_b, d].

    Source of the chunks: Gao, Zhang, Han and Callan (2021), "Scaling Deep Contrastive Learning
    Batch Size under Memory Limited Setup".
    """
    return _forward(head, windows, chunk, tables, weights, blocks)[0]


def _forward(
    head: Head,
    windows: tuple[int, ...],
    chunk: int,
    tables: list[jax.Array],
    weights: Any,
    blocks: tuple[jax.Array, ...],
) -> tuple[jax.Array, Any]:
    def of_chunk(ids: jax.Array) -> Any:
        found = _maxima(tables, windows, ids)
        return head(weights, found[0], ids), None if chunk else found

    vectors, kept = [], []
    for block in blocks:
        result, found = lax.map(of_chunk, in_tiles(block, _rows_at_once(block, tables, chunk)))
        vectors.append(joined(result, len(block)))
        kept.append(found)
    return jnp.concatenate(vectors), (tables, weights, blocks, kept)


def _backward(
    head: Head,
    windows: tuple[int, ...],
    chunk: int,
    saved: Any,
    gradient: jax.Array,
) -> tuple[Any, Any, None]:
    tables, weights, blocks, kept = saved

    def step(so_far: Any, inputs: Any) -> tuple[Any, None]:
        of_tables, of_weights = so_far
        ids, gradient, found = inputs
        maxima, positions = found or _maxima(tables, windows, ids)
        pull = jax.vjp(lambda w, m: head(w, m, ids), weights, maxima)[1]
        added, of_maxima = pull(gradient)
        of_tables = [
            _scatter_gradient(*of_one, ids)
            for of_one in zip(of_tables, windows, positions, of_maxima, strict=True)
        ]
        return (of_tables, jax.tree.map(jnp.add, of_weights, added)), None

    # One sum for all blocks: a table is the largest array of a step.
    so_far = jax.tree.map(jnp.zeros_like, (tables, weights))
    start = 0
    for block, found in zip(blocks, kept, strict=True):
        rows = _rows_at_once(block, tables, chunk)
        theirs = gradient[start : start + len(block)]
        inputs = (in_tiles(block, rows), in_tiles(theirs, rows), found)
        so_far, _ = lax.scan(step, so_far, inputs)
        start += len(block)
    return *so_far, None


conv_max_pool.defvjp(_forward, _backward)


def _rows_at_once(block: jax.Array, tables: list[jax.Array], chunk: int) -> int:
    """How many questions of a block are encoded at a time."""
    scores = max(1, block.shape[1]) * max(table.shape[1] for table in tables)
    return max(1, min(chunk or len(block), MAX_SCORES // scores))


def _table_rows(ids: jax.Array, window: int) -> list[jax.Array]:
    """The rows of the table that each place of the window meets at each position, [n, L] each."""
    left = window // 2
    padded = jnp.pad(ids, ((0, 0), (left, window - 1 - left)))
    return [padded[:, k : k + ids.shape[1]] * window + k for k in range(window)]


def _maxima(
    tables: list[jax.Array], windows: tuple[int, ...], ids: jax.Array
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The maxima of each window and their positions, [n, f] each."""
    found = [_maximum(table, w, ids) for table, w in zip(tables, windows, strict=True)]
    maxima, positions = zip(*found, strict=True)
    return list(maxima), list(positions)


def _maximum(table: jax.Array, window: int, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    scores = functools.reduce(jnp.add, (table[rows] for rows in _table_rows(ids, window)))
    positions = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    own = (ids > 0)[:, :, None] | (positions == 0)
    scores = jnp.where(own, scores, -jnp.inf)
    # The position in a second reduction: one of values and positions together is four times slower.
    maximum = scores.max(axis=1)
    reached = jnp.where(scores == maximum[:, None], positions, ids.shape[1])
    return maximum, reached.min(axis=1)


def _scatter_gradient(
    table: jax.Array, window: int, position: jax.Array, gradient: jax.Array, ids: jax.Array
) -> jax.Array:
    """The table's gradient with that of the maxima of more questions added to it."""
    filters = jnp.arange(table.shape[1])[None]
    # Each filter's gradient goes to the words of one position only: numbers scattered one by one
    # are a quarter of the time of whole rows that are mostly 0.
    for rows in _table_rows(ids, window):
        table = table.at[jnp.take_along_axis(rows, position, axis=1), filters].add(gradient)
    return table
