"""Losses of float64 vectors, with `jax_enable_x64`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.losses import (
    contrastive_loss,
    imitation_loss,
    online_contrastive_loss,
    ranking_loss,
    sdml_loss,
    triplet_loss,
)
from tests.losses import test_contrastive as contrastive
from tests.losses import test_triplet as triplet
from tests.losses.references import sdml_reference, slow

DISTANCE = {"prior": "distance"}


@pytest.fixture(autouse=True)
def _in_64_bits():
    with jax.enable_x64(True):
        yield


def vectors(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in shapes]


def check(loss, arrays, expected=None, *, smooth=True):
    """The loss is the reference's, its gradient that of differences; float32 keeps its type.

    Not `smooth`: a part of the loss has no gradient.
    """
    arrays = [jnp.asarray(array) for array in arrays]
    value_and_gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    value, gradients = value_and_gradients(*arrays)
    assert value.dtype == jnp.float64
    if expected is not None:
        assert float(value) == pytest.approx(expected[0], rel=1e-12, abs=1e-12)
        for got, want in zip(gradients, expected[1:], strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * (1 + np.abs(want).max()))
    if smooth:
        check_slopes(value_and_gradients, arrays, gradients)
    halves = [array.astype(jnp.float32) for array in arrays]
    types = {part.dtype for part in jax.tree.leaves(jax.eval_shape(value_and_gradients, *halves))}
    assert types == {jnp.dtype("float32")}


def check_slopes(value_and_gradients, arrays, gradients):
    """The gradients are those of differences, along one way."""
    ways, step = [jnp.asarray(way) for way in vectors(*(array.shape for array in arrays))], 1e-6
    above, below = (
        value_and_gradients(*(a + sign * step * w for a, w in zip(arrays, ways, strict=True)))[0]
        for sign in (1, -1)
    )
    slope = sum(
        float((way * gradient).sum()) for way, gradient in zip(ways, gradients, strict=True)
    )
    assert float(above - below) / (2 * step) == pytest.approx(slope, rel=1e-7, abs=1e-8)


def over_devices(loss, count):
    """`loss` with an `axis_name`, over shares of its arguments."""
    return jax.shard_map(
        functools.partial(loss, axis_name="data"),
        mesh=Mesh(np.array(jax.devices()[:count]), ("data",)),
        in_specs=PartitionSpec("data"),
        out_specs=PartitionSpec(),
    )


@pytest.mark.parametrize(
    ("options", "clustered"),
    [
        slow({}, False),
        ({"symmetric": True}, True),
        slow({"distance": "euc", "symmetric": True}, True),
        ({"distance": "euc", **DISTANCE}, False),
        slow({"symmetric": True, **DISTANCE}, True),
        ({"distance": "dot", "symmetric": True}, True),
        slow({"distance": "dot", **DISTANCE}, False),
    ],
)
@pytest.mark.parametrize("tile", [4, slow(None), slow("auto")])
def test_sdml(options, clustered, tile):
    x, y = vectors((9, 5), (13, 5))
    y[:9] = x + 0.5 * y[:9]
    clusters = np.random.default_rng(1).integers(-1, 4, size=13) if clustered else None
    expected = sdml_reference(x, y, clusters, **options)
    loss = functools.partial(sdml_loss, clusters=clusters, tile=tile, **options)
    check(loss, (x, y), expected, smooth="prior" not in options)


@pytest.mark.parametrize("tile", [3, slow(None)])
@pytest.mark.parametrize("options", [slow({}), {"distance": "euc", "symmetric": True, **DISTANCE}])
def test_sdml_over_devices(options, tile):
    x, y = vectors((8, 5), (8, 5))
    loss = over_devices(functools.partial(sdml_loss, tile=tile, **options), 2)
    check(loss, (x, y), sdml_reference(x, y, **options), smooth="prior" not in options)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_ranking(similarity):
    x, y = vectors((9, 5), (13, 5))
    sides = [3 * x, y]
    if similarity == "cosine":
        sides = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (x, y)]
        sides[0] *= 3
    value = sdml_reference(*sides, distance="dot", smoothing=0.1, symmetric=True)[0]
    loss = functools.partial(
        ranking_loss, similarity=similarity, similarity_scale=3.0, smoothing=0.1, symmetric=True
    )
    check(loss, (x, y))
    assert float(loss(x, y)) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("distance", ["ssd", "euc"])
@pytest.mark.parametrize("negatives", ["random", "hard", "hard_anchor"])
def test_triplet(negatives, distance):
    x, y = vectors((9, 5), (13, 5))
    options = {"negatives": negatives, "distance": distance, "margin": 3.0}
    loss = functools.partial(triplet_loss, key=jax.random.key(1), **options)
    hard = negatives != "random"
    chosen = triplet.closest(x, y, None, negatives) if hard else None
    expected = triplet.reference(x, y, chosen, margin=3.0, distance=distance) if hard else None
    check(loss, (x, y), expected)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("loss", [contrastive_loss, online_contrastive_loss])
def test_contrastive(loss, distance):
    x, y = vectors((9, 5), (9, 5))
    labels = np.arange(9) % 2
    expected = contrastive.reference(loss, x, y, labels, metric=distance, margin=1.5)
    options = {"labels": labels, "metric": distance, "margin": 1.5}
    check(functools.partial(loss, **options), (x, y), expected)


def test_imitation():
    x, y = vectors((9, 5), (9, 5))
    difference = (x - y) / 9
    check(imitation_loss, (x, y), (((x - y) ** 2).sum() / 18, difference, -difference))


@pytest.mark.parametrize(
    "loss",
    [
        functools.partial(sdml_loss, tile=4, symmetric=True),
        functools.partial(sdml_loss, **DISTANCE),
        ranking_loss,
        functools.partial(triplet_loss, negatives="hard"),
        functools.partial(contrastive_loss, labels=np.arange(9) % 2),
        functools.partial(online_contrastive_loss, labels=np.arange(9) % 2),
        imitation_loss,
    ],
)
def test_float32_vectors_have_the_loss_of_float64_ones(loss):
    x, y = vectors((9, 5), (9, 5))
    rounded = jax.jit(loss)(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
    assert float(rounded) == pytest.approx(float(jax.jit(loss)(x, y)), rel=1e-4)


def test_types():
    """The common type of both sides, float32 for half precision, the default for integers."""
    x, y = (np.random.default_rng(0).integers(0, 4, size=(4, 3)) for _ in range(2))
    for loss in (sdml_loss, functools.partial(sdml_loss, tile=3), imitation_loss):
        for kinds, expected in (
            (("float32", "float64"), "float64"),
            (("float32", "bfloat16"), "float32"),
            (("float16", "bfloat16"), "float32"),
            (("float16", "int64"), "float32"),
            (("int64", "int32"), "float64"),
        ):
            sides = [jnp.asarray(side, kind) for side, kind in zip((x, y), kinds, strict=True)]
            assert jax.eval_shape(loss, *sides).dtype == expected
    with jax.enable_x64(False):
        assert jax.eval_shape(sdml_loss, x, y).dtype == jnp.float32
        assert jax.jit(sdml_loss)(*vectors((4, 3), (4, 3))).dtype == jnp.float32


@pytest.mark.parametrize("tile", [None, 3])
def test_traced_ids_of_64_bits_are_compared_whole(tile):
    x, y = vectors((6, 3), (6, 3))
    ids = jnp.array([1, 1 + 2**32, 5, 5, -1, -1])
    assert ids.dtype == jnp.int64
    loss = jax.jit(lambda ids: sdml_loss(x, y, clusters=ids, tile=tile))
    assert float(loss(ids)) == pytest.approx(float(loss(jnp.array([1, 2, 5, 5, -1, -1]))), 1e-15)
    assert float(loss(ids)) != float(loss(jnp.array([1, 1, 5, 5, -1, -1])))
