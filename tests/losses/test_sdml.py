"""SDML against the paper, the authors' code and values worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import ranking_loss, sdml_loss
from tests.losses import references
from tests.losses.cases import Case, pairs, value_and_gradients


def test_figure_2_of_the_paper():
    """N 3, smoothing 0.3: targets 0.8, 0.1, 0.1. Equal distances predict 1/3 each."""
    same = jnp.zeros((3, 4))
    expected = 0.8 * np.log(0.8 * 3) + 2 * 0.1 * np.log(0.1 * 3)
    assert float(sdml_loss(same, same, smoothing=0.3)) == pytest.approx(expected, abs=1e-6)


def test_it_equals_the_loss_of_the_authors_given_their_smoothing():
    """MXNet's SDMLLoss puts 1 - eps on the pair and eps / (N - 1) elsewhere."""
    n, eps = 12, 0.3
    x, y, _ = pairs(n, n, 6)
    distances = ((np.asarray(x)[:, None] - np.asarray(y)[None]) ** 2).sum(axis=2, dtype=np.float64)
    log_p = -distances - np.log(np.exp(-distances).sum(axis=1, keepdims=True))
    target = np.full((n, n), eps / (n - 1))
    np.fill_diagonal(target, 1 - eps)
    authors = (target * (np.log(target) - log_p)).sum() / n
    ours = sdml_loss(x, y, smoothing=eps * n / (n - 1))
    assert float(ours) == pytest.approx(authors, rel=1e-5)


def test_the_distance_prior_by_hand():
    """Distances 0, 1 and 2 of the first query: the smoothing is spread as 1 to 1/e."""
    x, y = jnp.zeros((1, 1)), jnp.array([[0.0], [1.0], [2.0]])
    p = np.exp([0, -1, -2]) / np.exp([0, -1, -2]).sum()
    target = np.array([0.7, 0.3 / (1 + np.exp(-1)), 0.3 * np.exp(-1) / (1 + np.exp(-1))])
    expected = (target * np.log(target / p)).sum()
    value = sdml_loss(x, y, distance="euc", prior="distance")
    assert float(value) == pytest.approx(expected, abs=1e-6)


def test_roots_of_distances_within_rounding_are_bounded():
    """Of equal and of nearly equal vectors, which a batch has if its data have doubles."""
    options = {"distance": "euc", "prior": "distance", "symmetric": True}
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
    value, gradient = jax.value_and_grad(ranking_loss)(x, jnp.zeros((4, 3)))
    assert float(value) == pytest.approx(np.log(4))
    assert not np.asarray(gradient).any()
