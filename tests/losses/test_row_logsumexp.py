"""The quadratic term: tiles, extreme values, and the size of what it holds."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import sdml_loss
from qpr_jax.losses.row_logsumexp import Logits, divergence_sum
from tests.losses.cases import check
from tests.losses.references import one_way


def batch(n=13, m=21, d=6):
    rng = np.random.default_rng(0)
    x, y, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((n, d), (m, d), m))
    return x, y, bias, (x * y[:n]).sum(axis=1) + bias[:n]


def value_and_slopes(arrays, clusters=None, smoothing=0.0, tile_rows=0):
    def loss(*arrays):
        known = None if clusters is None else jnp.asarray(clusters)
        logits = Logits(*arrays, jnp.arange(len(arrays[0])), known)
        return divergence_sum(logits, smoothing, "highest", tile_rows)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))(*arrays)


def reference(arrays, clusters=None, smoothing=0.0):
    """Value and the four gradients in float64, row by row."""
    x, y, bias, positive = (np.asarray(array, np.float64) for array in arrays)
    n = len(x)
    logits, own = x @ y.T + bias, np.arange(n)
    logits[own, own] = positive
    value, slope = one_way(-logits, clusters, smoothing, "uniform")
    slope = -n * slope
    at_own = slope[own, own].copy()
    slope[own, own] = 0
    return n * value, slope @ y, slope.T @ x, slope.sum(axis=0), at_own


@pytest.mark.parametrize(
    ("tile_rows", "clustered", "smoothing"), [(1, True, 0.3), (5, False, 0.3), (100, True, 0.0)]
)
def test_tiles_of_any_size_give_the_same(tile_rows, clustered, smoothing):
    arrays = batch()
    clusters = np.random.default_rng(1).integers(-1, 4, 21) if clustered else None
    expected = reference(arrays, clusters, smoothing)
    check(value_and_slopes(arrays, clusters, smoothing, tile_rows), expected, 3e-6)


def test_small_values_keep_their_relative_precision():
    x, y, bias, _ = batch()
    positive = np.full(13, 60, np.float32)
    value, gradients = value_and_slopes((x, y, bias, positive))
    excess = np.logaddexp.reduce(
        np.where(np.eye(13, 21) == 1, -np.inf, (x @ y.T + bias).astype(np.float64)), axis=1
    )
    expected = np.log1p(np.exp(excess - 60)).sum()
    assert 0 < expected < 1e-20
    assert float(value) == pytest.approx(expected, rel=1e-5)
    assert -float(gradients[3].sum()) == pytest.approx(expected, rel=1e-4)


def test_rows_without_negatives_and_what_is_not_a_number():
    x, *others = batch()
    value, gradients = value_and_slopes((x, *others), np.zeros(21, int), 0.3)
    assert float(value) == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(np.concatenate([g.ravel() for g in gradients]), 0, atol=1e-6)
    x[3, 1] = np.nan
    assert np.isnan(value_and_slopes((x, *others))[0])


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
