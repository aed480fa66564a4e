"""Adam over a large table of which a step touches few rows, with the result of touching all.

A row that no gradient reaches still moves under Adam, by its momentum: a dense update reads and
writes the whole table and both its moments at every step, which is most of a small batch's time.
But where the gradient is 0 the moments only decay, so the movement over any number of steps is
the row's own direction times a number that depends on the steps alone. It is made up for when the
row is next read.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # those of the paper's Adam, and optax's defaults
# A missed step moves a row by (BETA1 / sqrt(BETA2)) ** k of the first: after so many, not at all.
_REACH = 160


class TableState(NamedTuple):
    """Rows of a table as they stood after step `at`, with their moments."""

    values: jax.Array  # float32 [n, d]
    first: jax.Array  # float32 [n, d]
    second: jax.Array  # float32 [n, d]
    at: jax.Array  # int32 [n], steps


def fresh_rows(values: jax.Array) -> TableState:
    """The rows before the first step."""
    # Arrays of their own: a step donates each.
    first, second = jnp.zeros_like(values), jnp.zeros_like(values)
    return TableState(values, first, second, jnp.zeros(len(values), jnp.int32))


def gather(rows: TableState, which: jax.Array) -> TableState:
    """Some of the rows, `which` int32 [k]."""
    return jax.tree.map(lambda array: array[which], rows)


def scatter(rows: TableState, which: jax.Array, changed: TableState) -> TableState:
    """The rows with `which` of them replaced; one named twice must be given twice the same."""
    return jax.tree.map(lambda array, new: array.at[which].set(new), rows, changed)


def apply_missed_steps(
    rows: TableState, step: jax.Array, learning_rate: optax.Schedule
) -> TableState:
    """The rows after `step` steps, none of which since `at` had a gradient for them.

    Equal to `optax.adam` but for its epsilon, which is taken as large beside the second moment as
    it was at step `at`; where the moment is not very small, neither counts.
    """
    missed = (step - rows.at)[:, None]
    ahead = jnp.arange(1, _REACH + 1)[None]
    number = rows.at[:, None] + ahead
    moved = jnp.where(
        ahead <= missed,
        jnp.broadcast_to(learning_rate(number - 1), number.shape)
        * (BETA1 / BETA2**0.5) ** ahead
        * (_correction(BETA2, number) ** 0.5 / _correction(BETA1, number)),
        0,
    ).sum(axis=1, keepdims=True)
    # A row that never had a gradient has moments of 0, and does not move.
    epsilon = EPSILON * jnp.sqrt(_correction(BETA2, jnp.maximum(rows.at, 1)))[:, None]
    direction = rows.first / (jnp.sqrt(rows.second) + epsilon)
    return TableState(
        rows.values - moved * direction,
        rows.first * BETA1**missed,
        rows.second * BETA2**missed,
        jnp.full_like(rows.at, step),
    )


def updated(rows: TableState, gradient: jax.Array, learning_rate: optax.Schedule) -> TableState:
    """The rows after one more step, with their gradient, float32 [n, d]."""
    first = BETA1 * rows.first + (1 - BETA1) * gradient
    second = BETA2 * rows.second + (1 - BETA2) * gradient**2
    number = rows.at[:, None] + 1
    size = jnp.sqrt(second / _correction(BETA2, number)) + EPSILON
    rate = jnp.broadcast_to(learning_rate(rows.at), rows.at.shape)[:, None]
    values = rows.values - rate * (first / _correction(BETA1, number)) / size
    return TableState(values, first, second, rows.at + 1)


def _correction(beta: float, number: jax.Array) -> jax.Array:
    """1 - beta ** number, which makes up for moments that began at 0."""
    return -jnp.expm1(number * jnp.log(beta))
