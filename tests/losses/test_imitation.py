import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.errors import UserError
from qpr_jax.losses import imitation_loss
from tests.losses.references import DEVICES


@pytest.fixture(scope="module")
def both():
    rng = np.random.default_rng(0)
    return rng.normal(size=(2, 16, 5)).astype(np.float32)


def test_value_and_gradient_are_those_of_float64(both):
    vectors, targets = both
    value, gradient = jax.value_and_grad(imitation_loss)(vectors, targets)
    difference = vectors.astype(np.float64) - targets
    assert float(value) == pytest.approx(0.5 * (difference**2).sum() / 16, rel=1e-6)
    np.testing.assert_allclose(gradient, difference / 16, rtol=1e-5, atol=1e-7)


def test_of_vectors_of_length_1_it_is_one_minus_the_cosine(both):
    vectors, targets = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in both)
    expected = 1 - (vectors * targets).sum(axis=1).mean()
    assert float(imitation_loss(vectors, targets)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("devices", DEVICES[1:])
def test_any_number_of_devices_gives_the_same(both, devices):
    split = PartitionSpec("data")
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    mapped = jax.shard_map(
        lambda v, t: imitation_loss(v, t, axis_name="data"),
        mesh=mesh,
        in_specs=(split, split),
        out_specs=PartitionSpec(),
    )
    value, gradient = jax.value_and_grad(mapped)(*both)
    expected, expected_gradient = jax.value_and_grad(imitation_loss)(*both)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-6)


def test_targets_of_another_shape_are_refused(both):
    with pytest.raises(
        UserError, match=r"`targets`: expected \[n, d\] as `vectors`, got \[16, 4\]"
    ):
        imitation_loss(both[0], both[1][:, :4])
