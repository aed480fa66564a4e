"""The loss in tiles: memory, sizes, and what it is without its gradient."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import sdml_loss
from qpr_jax.losses.dispatch import Method, choose_method
from tests.losses.references import slow

DOT = {"distance": "dot", "symmetric": True}


@pytest.fixture(autouse=True)
def _as_users_have_them():
    """Not here: what is held against each other is compiled alike, and quickly."""


def compiled(**options):
    return jax.jit(
        jax.value_and_grad(lambda x, y: sdml_loss(x, y, **options), argnums=(0, 1)),
    )


@pytest.mark.parametrize(
    "options",
    [{}, slow({"symmetric": True}), {"prior": "distance"}, slow(DOT)],
    ids=str,
)
@pytest.mark.parametrize("tiles", [(1, 20, 1000), slow((66, 67))])
def test_any_tile_gives_the_loss_of_all_at_once(options, tiles, batch):
    x, y, _ = batch(67, 80, 30, offset=0.0 if "distance" in options else 1e4)
    expected, gradients = compiled(tile=None, **options)(x, y)
    for tile in tiles:
        value, ours = compiled(tile=tile, **options)(x, y)
        assert float(value) == pytest.approx(float(expected), rel=1e-6)
        for got, want in zip(ours, gradients, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("options", [slow({}), {"symmetric": True}, {"distance": "euc"}], ids=str)
def test_the_value_alone_is_that_beside_the_gradient(options, batch):
    x, y, _ = batch(30, 30, 8)
    value, _ = compiled(tile=7, **options)(x, y)
    alone = jax.jit(lambda x, y: sdml_loss(x, y, tile=7, **options))(x, y)
    assert float(alone) == pytest.approx(float(value), rel=1e-6)


def test_the_gradient_is_scaled_by_what_is_made_of_the_loss(batch):
    x, y, _ = batch(30, 30, 8)
    once, thrice = (
        jax.jit(jax.grad(lambda x, w=weight: w * sdml_loss(x, y, tile=7, symmetric=True)))(x)
        for weight in (1.0, 3.0)
    )
    np.testing.assert_allclose(3 * once, thrice, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [slow({}), {"symmetric": True}, slow({"distance": "euc"}), slow(DOT)],
    ids=str,
)
def test_memory_grows_with_the_tile_and_not_with_the_batch(options):
    def temporaries(count, tile):
        side = jax.ShapeDtypeStruct((count, 16), jnp.float32)
        lowered = compiled(tile=tile, **options).lower(side, side)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert temporaries(4096, 64) < temporaries(4096, None) / 16
    # Twice the batch at the same tile: twice the memory, not four times.
    assert temporaries(8192, 64) < 2.5 * temporaries(4096, 64)


def test_the_tile_is_chosen_by_size():
    def chosen(rows, columns, distance="ssd", prior="uniform", tile="auto"):
        return choose_method(tile, rows, columns, distance=distance, prior=prior)

    assert [chosen(n, n).tile for n in (100, 4096, 65_536, 1 << 20)] == [100, 512, 128, 64]
    assert chosen(10, 1 << 30, "dot") == Method("tiled_softmax", 10)
    for other in (("euc", "uniform"), ("ssd", "distance")):
        assert chosen(4096, 4096, *other) == Method("dense", None)
        assert chosen(65_536, 65_536, *other) == Method("autodiff_tiles", 128)
        assert chosen(5, 5, *other, tile=7) == Method("autodiff_tiles", 7)
    assert chosen(10**6, 10**6, tile=None) == Method("dense", None)
    assert chosen(5, 5, tile=7) == Method("tiled_softmax", 7)


def test_the_tile_is_told(caplog):
    side = jax.ShapeDtypeStruct((1000, 8), jnp.float32)
    with caplog.at_level(logging.INFO, logger="qpr_jax"):
        jax.eval_shape(sdml_loss, side, side)
        jax.eval_shape(lambda x: sdml_loss(x, x, distance="euc"), side)
    assert caplog.messages == [
        "loss: 1000 x 1000 distances, 512 rows a tile",
        "loss: 1000 x 1000 distances, all at once",
    ]
