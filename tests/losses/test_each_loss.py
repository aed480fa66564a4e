"""What is particular to a loss: SDML of the paper, hard pairs, random negatives, no N x N array."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import (
    batch_loss,
    contrastive_loss,
    mean_loss,
    online_contrastive_loss,
    ranking_loss,
    sdml_loss,
    triplet_loss,
)
from tests.losses import references
from tests.losses.cases import Case, check, over_devices, pairs, value_and_gradients


def test_figure_2_of_the_paper():
    """N 3, smoothing 0.3: targets 0.8, 0.1, 0.1. Equal distances predict 1/3 each."""
    same = jnp.zeros((3, 4))
    expected = 0.8 * np.log(0.8 * 3) + 2 * 0.1 * np.log(0.1 * 3)
    found = sdml_loss(same, same, jnp.arange(3), smoothing=0.3)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_it_equals_the_loss_of_the_authors_given_their_smoothing():
    """MXNet's SDMLLoss puts 1 - eps on the pair and eps / (N - 1) elsewhere."""
    n, eps = 12, 0.3
    x, y, _ = pairs(n, n, 6)
    distances = ((np.asarray(x)[:, None] - np.asarray(y)[None]) ** 2).sum(axis=2, dtype=np.float64)
    log_p = -distances - np.log(np.exp(-distances).sum(axis=1, keepdims=True))
    target = np.full((n, n), eps / (n - 1))
    np.fill_diagonal(target, 1 - eps)
    authors = (target * (np.log(target) - log_p)).sum() / n
    ours = batch_loss(functools.partial(sdml_loss, smoothing=eps * n / (n - 1)), x, y)
    assert float(ours) == pytest.approx(authors, rel=1e-5)


def test_roots_of_distances_within_rounding_are_bounded():
    """Of equal and of nearly equal vectors, which a batch has if its data have doubles."""
    options = {"distance": "euc", "symmetric": True}
    case = Case("sdml", options, references.sdml)
    x, y, _ = pairs(24, 30, 20)
    close = 1e-4 * y + x[:1]
    for sides in (
        (x.at[3:9].set(x[0]), y.at[5:27].set(x[0])),
        (x.at[::2].set(close[:24:2]), y.at[::3].set(close[::3])),
    ):
        value, gradients = value_and_gradients(case)(*sides, None)
        expected, *slopes = case.expected(*sides)
        assert float(value) == pytest.approx(expected, rel=1e-3)
        for gradient, slope in zip(gradients, slopes, strict=True):
            assert np.abs(gradient).max() <= np.abs(slope).max() * 1.01


def test_vectors_of_zeros_have_a_similarity_of_0_and_no_slope():
    x = 0 * jnp.eye(3)
    loss = functools.partial(batch_loss, ranking_loss)
    value, gradient = jax.value_and_grad(loss)(x, jnp.zeros((4, 3)))
    assert float(value) == pytest.approx(np.log(4))
    assert not np.asarray(gradient).any()


def batch(n):
    x, y, _ = pairs(n, n, 4)
    return x, y, np.random.default_rng(1).integers(0, 2, n)


@pytest.mark.parametrize("positives", [48, 47, 20, 1, 0])
def test_hard_pairs_are_chosen_over_all_devices(positives):
    """Labels of one kind on all devices, on few, on one, and on none."""
    x, y, _ = pairs(48, 48, 6)
    labels = (np.arange(48) < positives).astype(int)
    loss = functools.partial(mean_loss, functools.partial(online_contrastive_loss, margin=1.1))
    formula = references.online_contrastive
    expected = references.evaluate(formula, x, y, labels, margin=1.1)
    check(over_devices(loss, 8, (x, y, labels)), expected)


def test_pairs_that_are_all_as_far_are_not_hard():
    for row in np.random.default_rng(0).normal(size=(40, 2, 5)).astype(np.float32):
        x, y = (np.tile(side, (13, 1)) for side in row)
        assert not online_contrastive_loss(x, y, jnp.ones(13)).any()


@pytest.mark.parametrize("loss", [contrastive_loss, online_contrastive_loss])
def test_labels_are_numbers_or_truths(loss):
    left, right, labels = batch(12)
    expected = float(mean_loss(loss, left, right, labels))
    for kind in (bool, np.float32, np.int8):
        assert float(mean_loss(loss, left, right, labels.astype(kind))) == expected
    assert float(mean_loss(loss, left, right, labels.tolist())) == expected


def test_what_is_not_a_number_shows():
    """In either side of a pair of either label, also if it is the only one of its label."""
    left, right, labels = batch(12)
    bad = left.at[3, 1].set(jnp.nan)
    for sides in ((bad, right), (right, bad)):
        for kinds in (labels, np.eye(12)[3], np.eye(12)[3] == 0):
            assert np.isnan(mean_loss(contrastive_loss, *sides, kinds))
            assert np.isnan(mean_loss(online_contrastive_loss, *sides, kinds))
        assert np.isnan(batch_loss(sdml_loss, *sides))
        assert np.isnan(batch_loss(ranking_loss, *sides))


KEY = jax.random.key(3)


def drawn(queries, candidates, gradient):
    """The negatives chosen, read off the queries' gradient where every row is within the margin."""
    y = np.asarray(candidates, np.float64)
    negatives = y[: len(queries)] + np.asarray(gradient, np.float64) * len(queries) / 2
    return ((negatives[:, None] - y[None]) ** 2).sum(axis=2).argmin(axis=1)


@pytest.mark.parametrize("devices", [1, 8])
def test_random_negatives_do_not_depend_on_the_devices(devices):
    x, y, clusters = pairs(16, 24, 10)
    loss = jax.grad(Case("triplet", {"key": KEY, "margin": 1e3}, None).loss)
    chosen = drawn(x, y, loss(x, y, clusters))
    assert references.negatives_of(16, 24, clusters)[np.arange(16), chosen].all()
    loss = Case("triplet", {"key": KEY, "distance": "euc"}, None).loss
    options = {"distance": "euc", "chosen": chosen}
    expected = references.evaluate(references.triplet, x, y, clusters, **options)
    check(over_devices(loss, devices, (x, y, clusters)), expected)


def test_random_negatives_are_drawn_evenly_of_those_allowed():
    x, y, clusters = pairs(6, 9, 30)
    draws = 1500

    def gradient(key):
        loss = Case("triplet", {"key": key, "margin": 1e3}, None).loss
        return jax.grad(loss)(x, y, clusters)

    gradients = jax.jit(jax.vmap(gradient))(jax.random.split(jax.random.key(0), draws))
    chosen = np.array([drawn(x, y, gradient) for gradient in np.asarray(gradients)])
    for i, allowed in enumerate(references.negatives_of(6, 9, clusters)):
        counts = np.bincount(chosen[:, i], minlength=9)
        assert counts[allowed].sum() == draws
        expected = draws / allowed.sum()
        assert ((counts[allowed] - expected) ** 2 / expected).sum() < 30  # chi2 with at most 7
    # Rows draw by themselves: not all of them the same place in their lists.
    assert len(np.unique(chosen, axis=0)) > draws / 10


@pytest.mark.parametrize("negatives", ["random", "hard"])
def test_a_row_without_negatives_counts_nothing(negatives):
    x = y = jnp.array([[0.0], [1.0], [0.5]])
    options = {"negatives": negatives, "key": KEY, "margin": 1.0}
    found = triplet_loss(x, y, jnp.arange(3), jnp.array([4, 4, -1]), **options)
    assert found.tolist() == 3 * [0.75]
    assert not triplet_loss(x, y, jnp.arange(3), jnp.array([4, 4, 4]), **options).any()


def test_small_values_keep_their_relative_precision():
    x = np.float32(30**0.5) * np.eye(12, dtype=np.float32)  # all others are at a distance of 60
    loss = value_and_gradients(Case("sdml", {"smoothing": 0.0}, None))
    value, (gradient, _) = loss(x, x, None)
    share = np.exp(-60.0)
    np.testing.assert_allclose(value, 11 * share, rtol=1e-4)
    expected = 2 * share / 12 * (x.sum(axis=0) - 12 * x)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4)


@pytest.mark.parametrize("symmetric", [False, True])
def test_no_array_of_all_scores_is_ever_held(symmetric):
    n = 5000  # of fewer the products of both directions are kept, up to 64 MiB
    vectors = jax.ShapeDtypeStruct((n, 8), jnp.float32)
    loss = jax.value_and_grad(lambda x, y: batch_loss(sdml_loss, x, y, symmetric=symmetric), (0, 1))
    text = jax.jit(loss).lower(vectors, vectors).as_text()
    sizes = [
        np.prod([int(size) for size in shape.split("x")])
        for shape in re.findall(r"tensor<((?:\d+x)+\d+)x[a-z]", text.replace("xf32", "x1xf32"))
    ]
    assert n * 64 < max(sizes) < n * 600
