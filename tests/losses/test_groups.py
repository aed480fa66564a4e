"""SDML of vectors in two groups that lie far apart, as clusters of a trained encoder may."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import sdml_loss
from tests.losses.references import sdml_reference

APART = 1e2


def groups(n, extra, d):
    """Queries, candidates and clusters, a third of each in one group."""
    rng = np.random.default_rng(0)
    way = rng.normal(size=d)
    far = (np.arange(n + extra) % 3 == 0)[:, None] * APART * way / np.linalg.norm(way)
    queries = rng.normal(size=(n, d))
    candidates = np.concatenate([queries, rng.normal(size=(extra, d))])
    candidates += 0.5 * rng.normal(size=(n + extra, d))
    x, y = (
        jnp.asarray(2 / np.sqrt(d) * side + far[: len(side)], jnp.float32)
        for side in (queries, candidates)
    )
    return x, y, rng.integers(-1, n // 3, size=n + extra, dtype=np.int32)


def distance(got, want):
    """Of two gradients, relative to the second."""
    got, want = (np.concatenate([np.asarray(side, np.float64) for side in g]) for g in (got, want))
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("extra", "clustered"), [(0, False), (30, True)])
@pytest.mark.parametrize(("n", "d"), [(100, 24), (250, 200)])
def test_tiles_are_as_accurate_as_all_at_once(symmetric, extra, clustered, n, d):
    x, y, clusters = groups(n, extra, d)
    clusters = clusters if clustered else None
    value, *gradients = sdml_reference(x, y, clusters, symmetric=symmetric)

    def loss(tile):
        return jax.jit(
            jax.value_and_grad(
                lambda x, y: sdml_loss(x, y, clusters=clusters, symmetric=symmetric, tile=tile),
                argnums=(0, 1),
            )
        )(x, y)

    plain, plain_gradients = loss(None)
    assert plain == pytest.approx(value, rel=1e-5)
    assert distance(plain_gradients, gradients) < 1e-5
    for tile in ("auto", 33):
        tiled, tiled_gradients = loss(tile)
        assert tiled == pytest.approx(value, rel=1e-5)
        assert distance(tiled_gradients, gradients) < 1e-5
        assert distance(tiled_gradients, plain_gradients) < 1e-5


def test_shares_of_devices_too(mapped):
    x, y, clusters = groups(96, 32, 24)
    value, *gradients = sdml_reference(x, y, clusters, symmetric=True)

    def loss(x, y, **more):
        return sdml_loss(x, y, symmetric=True, tile=7, **more)

    found, found_gradients = mapped(loss, 2)(x, y, clusters)
    assert found == pytest.approx(value, rel=1e-5)
    assert distance(found_gradients, gradients) < 1e-5
