"""Ids of clusters, as the losses are given them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import ranking_loss, sdml_loss, triplet_loss

LOSSES = pytest.mark.parametrize(
    "loss",
    [
        sdml_loss,
        lambda x, y, clusters: sdml_loss(x, y, clusters=clusters, symmetric=True, tile=2),
        lambda x, y, clusters: sdml_loss(x, y, clusters=clusters, distance="euc", tile=None),
        ranking_loss,
        lambda x, y, clusters: triplet_loss(x, y, clusters=clusters, negatives="hard"),
    ],
)


@LOSSES
@pytest.mark.parametrize(
    "clusters",
    [
        np.array([1, 1 + 2**32, 2, 3, 4]),
        np.array([0, 2**31, 2, 3, 4], np.uint32),
        np.array([0, 1, 2, 3, 2**64 - 1], np.uint64),
        np.array([0, 1, -(2**31) - 1]),
        [5, 2**40, 6, 7, 8],
    ],
    ids=str,
)
def test_what_does_not_fit_is_an_error(loss, clusters, batch):
    x, y, _ = batch(3, 5, 4)
    with pytest.raises(ValueError, match=r"expected `clusters` that fit int32, got u?int"):
        loss(x, y, clusters=clusters)
    with pytest.raises(ValueError, match="that fit int32"):
        jax.grad(lambda x: loss(x, y, clusters=clusters))(x)


@LOSSES
def test_what_does_not_fit_is_an_error_in_64_bits(loss, batch):
    x, y, _ = batch(3, 5, 4)
    with jax.enable_x64(True):
        ids = jnp.array([0, 2**32, 1])
        assert ids.dtype == jnp.int64
        with pytest.raises(ValueError, match="that fit int32"):
            loss(x, y, clusters=ids)


@LOSSES
def test_wide_types_whose_ids_fit(loss, batch):
    x, y, _ = batch(3, 5, 4)
    ids = np.array([2**31 - 1, 7, 2**31 - 1, -1, 7])

    def value(clusters):
        return jax.jit(lambda x, y: loss(x, y, clusters=clusters))(x, y)

    expected = value(jnp.asarray(ids, jnp.int32))
    for clusters in (ids, ids.tolist(), ids.astype(np.int32)):
        assert value(clusters) == expected
