"""The quadratic term: tiles, extreme values, and the size of what it holds."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import sdml_loss
from qpr_jax.losses.distances import map_rows
from qpr_jax.losses.row_logsumexp import Logits, row_logsumexp
from tests.losses.cases import check


def batch(n=13, m=21, d=6, seed=0):
    rng = np.random.default_rng(seed)
    x, y, bias, positive = (
        rng.normal(size=shape).astype(np.float32) for shape in ((n, d), (m, d), m, n)
    )
    return x, y, bias, positive, np.arange(n), rng.integers(-1, 4, m)


def slopes_of(x, y, bias, positive, own, clusters):
    """Value and the four gradients."""
    logits = Logits(x, y, bias, positive, jnp.asarray(own), clusters)
    value, slopes = jax.value_and_grad(row_logsumexp, allow_int=True)(logits)
    return value, slopes[:4]


def reference(x, y, bias, positive, own, clusters):
    """Value and the four gradients in float64, row by row."""
    x, y, bias, positive = (np.asarray(array, np.float64) for array in (x, y, bias, positive))
    value, slopes = 0.0, [np.zeros_like(array) for array in (x, y, bias, positive)]
    for i, column in enumerate(own):
        seen = np.arange(len(y)) != column
        if clusters is not None and clusters[column] >= 0:
            seen &= clusters != clusters[column]
        logits = np.where(seen, y @ x[i] + bias, -np.inf)
        log_sum = np.logaddexp.reduce([*logits, positive[i]])
        share = np.exp(logits - log_sum)
        value += np.log1p(np.exp(np.logaddexp.reduce(logits) - positive[i]))
        slopes[0][i] = share @ y
        slopes[1] += np.outer(share, x[i])
        slopes[2] += share
        slopes[3][i] = -share.sum()
    return value, *slopes


@pytest.mark.parametrize("tile_rows", [1, 5, 100])
@pytest.mark.parametrize("clustered", [False, True])
def test_tiles_of_any_size_give_the_same(tile_rows, clustered):
    *arrays, clusters = batch()
    clusters = clusters if clustered else None

    def loss(x, y, bias, positive):
        known = None if clusters is None else jnp.asarray(clusters)
        own = jnp.arange(13)
        logits = Logits(x, y, bias, positive, own, known)
        return row_logsumexp(logits, "highest", tile_rows)

    got = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))(*arrays[:4])
    check(got, reference(*arrays, clusters), 2e-6)


def test_small_values_keep_their_relative_precision():
    x, y, bias, _, own, _ = batch()
    positive = np.full(13, 60, np.float32)
    value, gradients = slopes_of(x, y, bias, positive, own, None)
    expected, *slopes = reference(x, y, bias, positive, own, None)
    assert 0 < expected < 1e-20
    assert float(value) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradients[0], slopes[0], rtol=1e-4, atol=1e-5 * expected)


def test_rows_without_negatives_and_what_is_not_a_number():
    x, y, bias, positive, own, _ = batch()
    value, gradients = slopes_of(x, y, bias, positive, own, jnp.zeros(21, int))
    assert float(value) == 0
    assert not any(np.asarray(gradient).any() for gradient in gradients)
    x[3, 1] = np.nan
    assert np.isnan(slopes_of(x, y, bias, positive, own, None)[0])


def test_forward_mode_is_refused():
    x, y, _, _, _, _ = batch(m=13)
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(sdml_loss, (x, y), (x, y))


@pytest.mark.parametrize("symmetric", [False, True])
def test_no_array_of_all_scores_is_ever_held(symmetric):
    n = 3000
    vectors = jax.ShapeDtypeStruct((n, 8), jnp.float32)
    loss = jax.value_and_grad(lambda x, y: sdml_loss(x, y, symmetric=symmetric), (0, 1))
    text = jax.jit(loss).lower(vectors, vectors).as_text()
    sizes = [
        np.prod([int(size) for size in shape.split("x")])
        for shape in re.findall(r"tensor<((?:\d+x)+\d+)x[a-z]", text.replace("xf32", "x1xf32"))
    ]
    assert n * 64 < max(sizes) < n * 600


def test_rows_in_tiles_are_rows_at_once():
    rows, columns = np.random.default_rng(0).normal(size=(2, 23, 4))

    def total(rows, columns, most):
        losses = map_rows(lambda part: jnp.exp(-part @ columns.T).sum(axis=1), rows, 23, most)
        return (losses**2).sum()

    whole = jax.value_and_grad(total, argnums=(0, 1))(rows, columns, 10**6)
    for most in (1, 5 * 23, 7 * 23 + 1):
        value, gradients = jax.value_and_grad(total, argnums=(0, 1))(rows, columns, most)
        assert value == pytest.approx(float(whole[0]), rel=1e-5)
        np.testing.assert_allclose(gradients, whole[1], rtol=1e-4)
