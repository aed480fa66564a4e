"""Adam for a large table of which each step reads few rows; equal to dense Adam over all rows.

Adam moves a row by its momentum even when its gradient is 0. A dense update therefore reads and
writes the whole table and both moments at every step, which is most of the time of a small batch.
But while the gradient is 0 the moments only decay, so the movement over any number of steps is the
row's direction times a factor that depends on the steps alone. It is applied when the row is next
read.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of the paper on Adam, and the defaults of Optax
# The k-th missed step moves a row by (BETA1 / sqrt(BETA2)) ** k of the first; from here on by 0.
_MAX_MISSED = 160


class TableState(NamedTuple):
    """Rows of a table with their moments, each as it was after its last update.

    Attributes:
      values: float32 [n, d].
      first: the first moments, float32 [n, d].
      second: the second moments, float32 [n, d].
      step: the number of steps up to each row's last update, int32 [n].
    """

    values: jax.Array
    first: jax.Array
    second: jax.Array
    step: jax.Array


def init_table(values: jax.Array) -> TableState:
    """The state of the table `values` [n, d] before the first step."""
    # Separate arrays, because a step donates each.
    first, second = jnp.zeros_like(values), jnp.zeros_like(values)
    return TableState(values, first, second, jnp.zeros(len(values), jnp.int32))


def gather(table: TableState, ids: jax.Array) -> TableState:
    """The rows `ids`, int32 [k], of the table."""
    return jax.tree.map(lambda array: array[ids], table)


def scatter(table: TableState, ids: jax.Array, rows: TableState) -> TableState:
    """Replace the rows `ids`, int32 [k]; rows of equal ids must be equal."""
    return jax.tree.map(lambda array, new: array.at[ids].set(new), table, rows)


def apply_missed_steps(
    rows: TableState, step: jax.Array, learning_rate: optax.Schedule
) -> TableState:
    """Apply the momentum updates that rows missed while their gradient was zero.

    Equal to `optax.adam` but for epsilon, whose ratio to the second moment stays that of the last
    update; it matters only if that moment is tiny.

    Args:
      rows: rows without a gradient since `rows.step`.
      step: the steps done, int32 []; the rows returned are those after this step.
      learning_rate: of each step.
    """
    missed = (step - rows.step)[:, None]
    ahead = jnp.arange(1, _MAX_MISSED + 1)[None]
    number = rows.step[:, None] + ahead
    moved = jnp.where(
        ahead <= missed,
        jnp.broadcast_to(learning_rate(number - 1), number.shape)
        * (BETA1 / BETA2**0.5) ** ahead
        * (_correction(BETA2, number) ** 0.5 / _correction(BETA1, number)),
        0,
    ).sum(axis=1, keepdims=True)
    # A row that never had a gradient has moments of 0, and does not move.
    epsilon = EPSILON * jnp.sqrt(_correction(BETA2, jnp.maximum(rows.step, 1)))[:, None]
    direction = rows.first / (jnp.sqrt(rows.second) + epsilon)
    return TableState(
        rows.values - moved * direction,
        rows.first * BETA1**missed,
        rows.second * BETA2**missed,
        jnp.full_like(rows.step, step),
    )


def update(rows: TableState, gradient: jax.Array, learning_rate: optax.Schedule) -> TableState:
    """Take one step of Adam with the gradient of the rows, float32 [n, d]."""
    first = BETA1 * rows.first + (1 - BETA1) * gradient
    second = BETA2 * rows.second + (1 - BETA2) * gradient**2
    number = rows.step[:, None] + 1
    size = jnp.sqrt(second / _correction(BETA2, number)) + EPSILON
    rate = jnp.broadcast_to(learning_rate(rows.step), rows.step.shape)[:, None]
    values = rows.values - rate * (first / _correction(BETA1, number)) / size
    return TableState(values, first, second, rows.step + 1)


def _correction(beta: float, number: jax.Array) -> jax.Array:
    """1 - beta ** number, which corrects the bias of moments that start at 0."""
    return -jnp.expm1(number * jnp.log(beta))
