"""SDML against the paper, the authors' code and values worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import ranking_loss, sdml_loss
from tests.losses import references
from tests.losses.cases import SPLIT, Case, Mesh, check, pairs, value_and_gradients


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


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_vectors_that_coincide_or_nearly_do(offset):
    case = Case(
        "sdml", {"distance": "euc", "prior": "distance", "symmetric": True}, references.sdml
    )
    loss = value_and_gradients(case)
    x, y, _ = pairs(24, 30, 20, offset=offset)
    close = (y - y.mean(axis=0)[None]) * 1e-4 + x[:1]
    for sides in (
        (x, y.at[:24].set(x)),
        (x.at[3:9].set(x[0]), y.at[5:27].set(x[0])),
        (x.at[::2].set(close[:24:2]), y.at[::3].set(close[::3])),
    ):
        check(loss(*sides, None), case.expected(*sides))


def test_vectors_of_zeros_have_a_similarity_of_0_and_no_slope():
    x = 0 * jnp.eye(3)
    value, gradient = jax.value_and_grad(ranking_loss)(x, jnp.zeros((4, 3)))
    assert float(value) == pytest.approx(np.log(4))
    assert not np.asarray(gradient).any()


@pytest.mark.parametrize(("checked", "factor"), [(True, 1), (False, 4)])
def test_a_gradient_taken_inside_the_map_needs_the_check(checked, factor):
    """What the docstring warns of: without the check it comes out once for each device."""
    queries, candidates, _ = pairs(16, 16, 5)
    inside = jax.shard_map(
        lambda x, y: jax.grad(sdml_loss)(x, y, axis_name="data"),
        mesh=Mesh(np.array(jax.devices()[:4]), ("data",)),
        in_specs=SPLIT,
        out_specs=SPLIT,
        check_vma=checked,
    )
    _, expected, _ = references.sdml(queries, candidates)
    gradient = jax.jit(inside)(queries, candidates)
    np.testing.assert_allclose(gradient, factor * expected, atol=1e-5 * factor)


def test_the_value_is_equal_on_all_devices():
    share = jax.shard_map(
        lambda x, y: sdml_loss(x, y, axis_name="data")[None],
        mesh=Mesh(np.array(jax.devices()[:8]), ("data",)),
        in_specs=SPLIT,
        out_specs=SPLIT,
        check_vma=False,
    )
    each = jax.jit(share)(*pairs(16, 16, 5)[:2])
    assert each.shape == (8,)
    assert len(set(each.tolist())) == 1
