"""SDML of vectors in two groups that lie far apart, as clusters of a trained encoder may."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import sdml_loss
from tests.losses.references import sdml_reference, slow

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
    """Of two gradients, relative to the second: of all, and of the worst row."""
    got, want = (np.concatenate([np.asarray(side, np.float64) for side in g]) for g in (got, want))
    rows = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    return max(np.linalg.norm(got - want) / np.linalg.norm(want), rows.max())


@pytest.mark.parametrize("smoothing", [0.3, slow(0.0), slow(0.1)])
@pytest.mark.parametrize("symmetric", [slow(False), True])
@pytest.mark.parametrize(
    ("extra", "clustered", "n", "d"), [slow(0, False, 250, 200), (30, True, 100, 24)]
)
def test_gradients_are_accurate(smoothing, symmetric, extra, clustered, n, d):
    x, y, clusters = groups(n, extra, d)
    options = {"symmetric": symmetric, "smoothing": smoothing}
    options["clusters"] = clusters if clustered else None
    value, *gradients = sdml_reference(x, y, **options)

    def loss(tile):
        return jax.jit(
            jax.value_and_grad(
                lambda x, y: sdml_loss(x, y, tile=tile, **options),
                argnums=(0, 1),
            )
        )(x, y)

    for tile in (None, "auto", 33):
        found, found_gradients = loss(tile)
        assert found == pytest.approx(value, rel=1e-5, abs=1e-6)
        assert distance(found_gradients, gradients) < 1e-5


@pytest.mark.parametrize("smoothing", [0.3, slow(0.0), slow(0.1)])
@pytest.mark.parametrize("symmetric", [slow(False), True])
@pytest.mark.parametrize("tile", [None, 7])
def test_shares_of_devices_too(mapped, smoothing, symmetric, tile):
    x, y, clusters = groups(96, 32, 24)
    options = {"symmetric": symmetric, "smoothing": smoothing}
    value, *gradients = sdml_reference(x, y, clusters, **options)

    def loss(x, y, **more):
        return sdml_loss(x, y, tile=tile, **options, **more)

    found, found_gradients = mapped(loss, 2)(x, y, clusters)
    assert found == pytest.approx(value, rel=1e-5, abs=1e-6)
    assert distance(found_gradients, gradients) < 1e-5
