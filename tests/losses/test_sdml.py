import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.losses import sdml_loss
from tests.losses import references
from tests.losses.references import DEVICES, slow


def reference(queries, candidates, smoothing):
    """Equation (4) as written, in float64: value and gradients."""
    distances, gradients = references.distances_of(queries, candidates, "ssd")
    n = len(distances)
    shifted = distances.min(axis=1, keepdims=True) - distances
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    target = (1 - smoothing) * np.eye(n) + smoothing / n
    log_target = np.log(np.where(target > 0, target, 1))
    value = (target * (log_target - log_p)).sum() / n
    slope = (target - np.exp(log_p)) / n
    return value, *gradients(slope)


def vectors(n, d, offset=0.0, seed=0):
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(n, d))
    candidates = queries + 0.5 * rng.normal(size=(n, d))
    scale = 2 / np.sqrt(d)
    return tuple(jnp.asarray(scale * side + offset, jnp.float32) for side in (queries, candidates))


def check(loss, queries, candidates, smoothing):
    got = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(queries, candidates)
    references.check(got, reference(queries, candidates, smoothing))


@pytest.mark.parametrize("smoothing", [0.0, slow(0.1), 0.3, slow(1.0)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize(("n", "d"), [(2, 1), slow(2, 300), (3, 7), slow(64, 300), (512, 300)])
def test_value_and_gradient_are_those_of_the_float64_reference(n, d, offset, smoothing):
    check(functools.partial(sdml_loss, smoothing=smoothing), *vectors(n, d, offset), smoothing)


@pytest.mark.parametrize("seed", [0, slow(1), slow(2)])
def test_unrelated_unit_normal_vectors_far_apart(seed):
    rng = np.random.default_rng(seed)
    x, y = (jnp.asarray(rng.normal(size=(128, 300)), jnp.float32) for _ in range(2))
    check(sdml_loss, x, y, 0.3)


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("checked", [True, slow(False)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_mapped_over_devices_it_is_the_loss_of_the_global_batch(devices, checked, offset):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    split, whole = PartitionSpec("data"), PartitionSpec()
    loss = jax.shard_map(
        functools.partial(sdml_loss, axis_name="data"),
        mesh=mesh,
        in_specs=(split, split),
        out_specs=whole,
        check_vma=checked,
    )
    check(loss, *vectors(64, 30, offset), 0.3)


@pytest.mark.parametrize("devices", [2, slow(8)])
def test_the_value_is_equal_on_all_devices(devices):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    split = PartitionSpec("data")
    share = jax.shard_map(
        lambda x, y: sdml_loss(x, y, axis_name="data")[None],
        mesh=mesh,
        in_specs=(split, split),
        out_specs=split,
        check_vma=False,
    )
    each = jax.jit(share)(*vectors(16, 5))
    assert each.shape == (devices,)
    assert len(set(each.tolist())) == 1


@pytest.mark.parametrize(("checked", "factor"), [(True, 1), (False, 4)])
def test_a_gradient_taken_inside_the_map_needs_the_check(checked, factor):
    """What the docstring warns of: without the check it comes out once for each device."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    split = PartitionSpec("data")
    queries, candidates = vectors(16, 5)
    inside = jax.shard_map(
        jax.grad(functools.partial(sdml_loss, axis_name="data")),
        mesh=mesh,
        in_specs=(split, split),
        out_specs=split,
        check_vma=checked,
    )
    _, expected, _ = reference(queries, candidates, 0.3)
    gradient = jax.jit(inside)(queries, candidates)
    np.testing.assert_allclose(
        gradient, factor * expected, atol=1e-5 * np.abs(expected).max() * factor
    )


def test_figure_2_of_the_paper():
    """N 3, smoothing 0.3: targets 0.8, 0.1, 0.1. Equal distances predict 1/3 each."""
    same = jnp.zeros((3, 4))
    expected = 0.8 * np.log(0.8 * 3) + 2 * 0.1 * np.log(0.1 * 3)
    assert float(sdml_loss(same, same, smoothing=0.3)) == pytest.approx(expected, abs=1e-6)


def test_it_equals_the_loss_of_the_authors_given_their_smoothing():
    """MXNet's SDMLLoss puts 1 - eps on the pair and eps / (N - 1) elsewhere."""
    n, eps = 12, 0.3
    x, y = vectors(n, 6)
    distances = ((np.asarray(x)[:, None] - np.asarray(y)[None]) ** 2).sum(axis=2, dtype=np.float64)
    log_p = -distances - np.log(np.exp(-distances).sum(axis=1, keepdims=True))
    target = np.full((n, n), eps / (n - 1))
    np.fill_diagonal(target, 1 - eps)
    authors = (target * (np.log(target) - log_p)).sum() / n
    ours = sdml_loss(x, y, smoothing=eps * n / (n - 1))
    assert float(ours) == pytest.approx(authors, rel=1e-5)


def test_one_pair_has_nothing_to_tell_apart():
    value, gradient = jax.value_and_grad(sdml_loss)(jnp.ones((1, 3)), jnp.zeros((1, 3)))
    assert float(value) == 0
    assert not np.asarray(gradient).any()


def test_half_precision_vectors_give_a_float32_loss():
    x, y = (side.astype(jnp.bfloat16) for side in vectors(8, 16))
    value = sdml_loss(x, y)
    assert value.dtype == jnp.float32
    assert float(value) == pytest.approx(reference(x, y, 0.3)[0], rel=1e-5)


@pytest.mark.parametrize(
    "shapes", [((4, 4), (3, 4)), ((3, 4), (3, 5)), ((3,), (3,)), ((0, 4), (0, 4))]
)
def test_wrong_shapes_are_named(shapes):
    with pytest.raises(ValueError, match=r"expected `queries` and `candidates` of one non-empty"):
        sdml_loss(jnp.zeros(shapes[0]), jnp.zeros(shapes[1]))


def test_wrong_smoothing_is_named():
    with pytest.raises(ValueError, match=r"expected `smoothing` from 0 to 1, got 1\.5"):
        sdml_loss(jnp.zeros((2, 2)), jnp.zeros((2, 2)), smoothing=1.5)
