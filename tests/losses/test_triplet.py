"""Random negatives, and what is particular to triplets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import triplet_loss
from tests.losses import references
from tests.losses.cases import check, over_devices, pairs

KEY = jax.random.key(3)


def with_options(**options):
    return lambda x, y, clusters=None, **more: triplet_loss(
        x, y, clusters=clusters, **options, **more
    )


def drawn(queries, candidates, gradient):
    """The negatives chosen, read off the queries' gradient where every row is within the margin."""
    y = np.asarray(candidates, np.float64)
    negatives = y[: len(queries)] + np.asarray(gradient, np.float64) * len(queries) / 2
    return ((negatives[:, None] - y[None]) ** 2).sum(axis=2).argmin(axis=1)


def test_the_two_readings_of_hard_differ():
    x = jnp.array([[0.0], [10.0]])
    y = jnp.array([[3.0], [5.0], [-1.0]])  # of query 0: 5 is closest to its positive, -1 to itself
    for negatives, expected in (("hard", (34 + 26) / 2), ("hard_anchor", (58 + 26) / 2)):
        assert triplet_loss(x, y, negatives=negatives, margin=50.0) == expected


@pytest.mark.parametrize("devices", [1, 8])
def test_random_negatives_do_not_depend_on_the_devices(devices):
    x, y, clusters = pairs(16, 24, 10)
    loss = jax.grad(with_options(key=KEY, margin=1e3))
    chosen = drawn(x, y, loss(x, y, clusters))
    for i, j in enumerate(chosen):
        assert references.negatives_of(i, 24, clusters)[j]
    loss = with_options(key=KEY, distance="euc")
    expected = references.triplet(x, y, clusters, distance="euc", chosen=chosen)
    check(over_devices(loss, devices, (x, y, clusters)), expected)


def test_random_negatives_are_drawn_evenly_of_those_allowed():
    x, y, clusters = pairs(6, 9, 30)
    draws = 1500
    gradients = jax.jit(
        jax.vmap(lambda key: jax.grad(triplet_loss)(x, y, clusters=clusters, key=key, margin=1e3))
    )(jax.random.split(jax.random.key(0), draws))
    chosen = np.array([drawn(x, y, gradient) for gradient in np.asarray(gradients)])
    for i in range(6):
        counts = np.bincount(chosen[:, i], minlength=9)
        allowed = references.negatives_of(i, 9, clusters)
        assert counts[allowed].sum() == draws
        expected = draws / allowed.sum()
        assert ((counts[allowed] - expected) ** 2 / expected).sum() < 30  # chi2 with at most 7
    # Rows draw by themselves: not all of them the same place in their lists.
    assert len(np.unique(chosen, axis=0)) > draws / 10


@pytest.mark.parametrize("negatives", ["random", "hard"])
def test_a_row_without_negatives_counts_nothing(negatives):
    """Rows 0 and 1 are of one cluster, and of row 2 both can be the negative."""
    x = y = jnp.array([[0.0], [1.0], [0.5]])
    loss = with_options(negatives=negatives, key=KEY, margin=1.0)
    assert float(loss(x, y, jnp.array([4, 4, -1]))) == pytest.approx(3 * 0.75 / 3)
