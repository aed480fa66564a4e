"""The loss of similarities: the divergence of neighbors in a batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.errors import UserError
from qpr_jax.losses import similarities_loss
from qpr_jax.tuning import Tuning
from tests.losses.references import DEVICES, check, slow


@pytest.fixture(scope="module")
def both():
    rng = np.random.default_rng(0)
    vectors, targets = rng.normal(size=(24, 5)), rng.normal(size=(24, 7))
    vectors[3], targets[5] = 0, 0  # without a direction
    vectors[7] *= 1e-3
    targets[8] = targets[9]
    return vectors.astype(np.float32), targets.astype(np.float32)


def unit(rows):
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths == 0, 1, lengths)


def shares(rows, temperature):
    """The distribution of each row over the others, and its logarithm, in float64."""
    logits = unit(rows) @ unit(rows).T / temperature
    np.fill_diagonal(logits, -np.inf)
    logits -= logits.max(axis=1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return np.exp(logs), np.where(np.isinf(logs), 0, logs)


def reference(vectors, targets, temperature):
    """The value and its gradient by the chain rule, in float64."""
    vectors, targets = vectors.astype(np.float64), targets.astype(np.float64)
    n = len(vectors)
    teacher, teacher_logs = shares(targets, temperature)
    student, student_logs = shares(vectors, temperature)
    value = (teacher * (teacher_logs - student_logs)).sum() / n
    slopes = (student - teacher) / (n * temperature)  # of the cosines
    directions = unit(vectors)
    pulls = (slopes + slopes.T) @ directions
    pulls -= directions * (directions * pulls).sum(axis=1, keepdims=True)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return value, pulls / np.where(lengths == 0, np.inf, lengths)


@pytest.mark.parametrize(
    ("temperature", "tile_rows"),
    [
        *((0.05, tile_rows) for tile_rows in (0, 1, 7, 24)),
        *((temperature, 7) for temperature in (0.02, 1.0)),
        *(slow(temperature, rows) for temperature in (0.02, 1.0) for rows in (0, 1, 24)),
    ],
)
def test_value_and_gradient_are_those_of_float64(both, temperature, tile_rows):
    tuning = Tuning("cpu", tile_rows=tile_rows)
    loss = functools.partial(similarities_loss, temperature=temperature, tuning=tuning)
    value, gradient = jax.jit(jax.value_and_grad(loss))(*both)
    check((value, [gradient]), reference(*both, temperature), tolerance=2e-5)


def test_in_64_bits_it_is_exact(both):
    with jax.enable_x64(True):
        arrays = [jnp.asarray(side, jnp.float64) for side in both]
        value, gradient = jax.jit(jax.value_and_grad(similarities_loss))(*arrays)
        expected, slope = reference(*both, 0.05)
        assert value.dtype == jnp.float64
        assert float(value) == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=0, atol=1e-12 * np.abs(slope).max())


@pytest.mark.parametrize("devices", DEVICES[1:])
def test_any_number_of_devices_gives_the_same(both, devices):
    split = PartitionSpec("data")
    mapped = jax.shard_map(
        lambda v, t: similarities_loss(v, t, axis_name="data"),
        mesh=Mesh(np.array(jax.devices()[:devices]), ("data",)),
        in_specs=(split, split),
        out_specs=PartitionSpec(),
    )
    value, gradient = jax.jit(jax.value_and_grad(mapped))(*both)
    expected, slope = jax.jit(jax.value_and_grad(similarities_loss))(*both)
    check((value, [gradient]), (float(expected), slope))


def test_it_is_zero_of_the_same_directions_and_has_no_gradient_of_targets(both):
    vectors, targets = both
    value, gradients = jax.value_and_grad(similarities_loss, argnums=(0, 1))(vectors, 3 * vectors)
    assert float(value) == pytest.approx(0, abs=1e-6)
    assert np.abs(gradients[0]).max() < 1e-4
    assert not np.any(jax.grad(similarities_loss, argnums=1)(vectors, targets))
    assert not np.any(gradients[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v, t: ((v, t[:4]), {}), r"`targets`: expected \[n, t\] for `vectors` \[n, d\]"),
        (lambda v, t: ((v[:1], t[:1]), {}), "expected 2 and more, got 1"),
        (lambda v, t: ((v, t), {"temperature": 0.0}), "`temperature`: expected above 0"),
    ],
)
def test_other_arguments_are_refused(both, change, message):
    arguments, options = change(*both)
    with pytest.raises(UserError, match=message):
        similarities_loss(*arguments, **options)
