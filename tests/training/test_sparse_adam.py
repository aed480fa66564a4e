import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qpr_jax.training import sparse_adam as adam

ROWS, WIDTH = 40, 6


def constant(step):
    return jnp.full(jnp.shape(step), 0.01)


def warmed_up(step):
    return 0.01 * jnp.minimum(1, (step + 1) / 50)


def sparse_gradients(steps, seed=0):
    """For each step the rows it touches, and a dense gradient that is 0 elsewhere."""
    rng = np.random.default_rng(seed)
    for step in range(steps):
        # Row 0 always, row 1 twice far apart, row 2 never, the others now and then.
        touched = np.flatnonzero(rng.random(ROWS) < 0.1)
        touched = np.setdiff1d(touched, [0, 1, 2])
        touched = np.concatenate([[0], [1] if step in (3, 290) else [], touched]).astype(int)
        touched = np.pad(touched, (0, ROWS - len(touched)))  # filled up with row 0 again
        gradient = np.zeros((ROWS, WIDTH), np.float32)
        # No smaller than 1e-4: there the epsilon, which a missed step leaves out, begins to count.
        size = rng.uniform(0.5, 1.5, (ROWS, WIDTH)) * 10.0 ** rng.integers(-3, 1)
        sign = rng.choice([-1, 1], size.shape)
        gradient[touched] = (size * sign)[touched]
        yield touched, gradient


@pytest.mark.parametrize("learning_rate", [constant, warmed_up])
def test_rows_touched_now_and_then_are_those_of_dense_adam(learning_rate):
    table = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, WIDTH)), jnp.float32)
    dense, optimizer = table, optax.adam(learning_rate)
    state, rows = optimizer.init(table), adam.init_table(table)

    @jax.jit
    def both(dense, state, rows, touched, gradient, step):
        updates, state = optimizer.update(gradient, state)
        current = adam.apply_missed_steps(adam.gather(rows, touched), step, learning_rate)
        rows = adam.scatter(rows, touched, adam.update(current, gradient[touched], learning_rate))
        return optax.apply_updates(dense, updates), state, rows

    for step, (touched, gradient) in enumerate(sparse_gradients(300)):
        dense, state, rows = both(dense, state, rows, touched, gradient, jnp.int32(step))
        if step in (0, 1, 7, 50, 299):
            now = adam.apply_missed_steps(rows, jnp.int32(step + 1), learning_rate)
            np.testing.assert_allclose(now.values, dense, atol=3e-5)
            np.testing.assert_allclose(now.first, state[0].mu, atol=1e-7)
            np.testing.assert_allclose(now.second, state[0].nu, rtol=1e-4, atol=1e-9)
    moved = np.abs(np.asarray(dense - table)).max(axis=1)
    assert moved[2] == 0
    assert moved[[0, 1]].min() > 0.02


def test_catching_up_twice_is_catching_up_once_and_no_step_changes_nothing():
    rows = adam.init_table(jnp.ones((3, 2)))
    rows = adam.update(rows, jnp.asarray([[1.0, -2.0], [0.0, 0.0], [3.0, 4.0]]), constant)
    once = adam.apply_missed_steps(rows, jnp.int32(30), constant)
    twice = adam.apply_missed_steps(
        adam.apply_missed_steps(rows, jnp.int32(11), constant), jnp.int32(30), constant
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), once, twice)
    same = adam.apply_missed_steps(rows, jnp.int32(1), constant)
    jax.tree.map(np.testing.assert_array_equal, same, rows)


@pytest.mark.parametrize("size", [1e-6, 1e-9, 1e-12])
def test_a_row_of_a_vanishing_gradient_hardly_moves(size):
    """Where the epsilon counts: one gradient, then 60 steps without."""
    table, optimizer = jnp.zeros((1, 1)), optax.adam(1e-3)
    gradient = jnp.full((1, 1), size)
    dense, state = table, optimizer.init(table)
    for step in range(61):
        updates, state = optimizer.update(gradient if step == 0 else 0 * gradient, state)
        dense = optax.apply_updates(dense, updates)
    rows = adam.update(adam.init_table(table), gradient, optax.constant_schedule(1e-3))
    late = adam.apply_missed_steps(rows, jnp.int32(61), optax.constant_schedule(1e-3))
    moved, expected = -float(late.values[0, 0]), -float(dense[0, 0])
    assert expected * 0.9 < moved < expected * 2.5


def test_a_row_long_unseen_stays_finite():
    rows = adam.update(adam.init_table(jnp.ones((1, 2))), jnp.full((1, 2), 1e-12), constant)
    late = adam.apply_missed_steps(rows, jnp.int32(200_000), constant)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(late))
    again = adam.update(late, jnp.ones((1, 2)), constant)
    assert np.isfinite(again.values).all()
