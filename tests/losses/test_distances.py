import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses.distances import from_squared, squared_distances


def batch(n, m, d, *, offset, noise, seed=0):
    """Row i of both sides is the same up to the noise, as far as both go."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(m, d))
    x, y = rows[:n], rows + noise * rng.normal(size=(m, d))
    return tuple(jnp.asarray(2 / np.sqrt(d) * side + offset, jnp.float32) for side in (x, y))


@jax.jit
def distances_and_gradients(x, y, weights):
    """The squared distances, and the gradients of the weighted sum of their roots."""

    def weighted(x, y):
        squared = squared_distances(x, y)
        return (weights * from_squared(squared, "euc")).sum(), squared

    (_, squared), gradients = jax.value_and_grad(weighted, argnums=(0, 1), has_aux=True)(x, y)
    return squared, gradients


def check(x, y):
    """Each distance within 1e-5 of itself, the gradients within 1e-5 of their largest entry."""
    difference = np.asarray(x, np.float64)[:, None] - np.asarray(y, np.float64)[None]
    expected = (difference**2).sum(axis=2)
    weights = np.random.default_rng(1).normal(size=expected.shape).astype(np.float32)
    squared, gradients = distances_and_gradients(x, y, weights)
    assert (np.abs(squared - expected) <= 1e-5 * expected).all()
    slope = np.divide(weights, np.sqrt(expected), where=expected > 0, out=np.zeros_like(expected))
    slope = slope[:, :, None] * difference
    for have, want in zip(gradients, (slope.sum(axis=1), -slope.sum(axis=0)), strict=True):
        assert np.abs(have - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 19, 5), (130, 200, 300)])
def test_distances_large_and_small(shape):
    for offset in (0.0, 1e4):
        for noise in (0.5, 0.02, 1e-6):
            check(*batch(*shape, offset=offset, noise=noise))


def test_many_near_distances():
    """Beyond the room for those recomputed one by one, all are taken from differences."""
    count = 71
    x, y = batch(count, count, 20, offset=0.0, noise=0.1)
    clump = 3 + 1e-3 * x[: count // 2]
    x = x.at[: count // 2].set(clump)
    y = y.at[: count // 2].set(clump[::-1])
    check(x, y)


def test_nothing_of_size_n_m_d_is_built():
    n, d = 256, 300
    side = jax.ShapeDtypeStruct((n, d), jnp.float32)
    compiled = (
        jax.jit(
            jax.value_and_grad(lambda x, y: (squared_distances(x, y) ** 2).sum(), argnums=(0, 1))
        )
        .lower(side, side)
        .compile()
    )
    assert compiled.memory_analysis().temp_size_in_bytes < n * n * d * 4 / 4


def test_the_gradient_of_the_root_is_zero_at_zero():
    same = jnp.ones((3, 4))
    squared, gradients = distances_and_gradients(same, same, jnp.ones((3, 3)))
    assert not np.asarray(squared).any()
    assert not np.asarray(gradients).any()


def test_what_is_not_a_number_stays_so():
    x = jnp.ones((3, 4)).at[1, 2].set(jnp.nan)
    squared, _ = distances_and_gradients(x, jnp.ones((3, 4)), jnp.ones((3, 3)))
    assert np.isnan(squared[1]).all()
    assert np.isnan(from_squared(squared, "euc")[1]).all()
