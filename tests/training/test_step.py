import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from qpr_jax.encoders.cnn import ConvEncoder
from qpr_jax.losses import sdml_loss
from qpr_jax.training.batches import Questions, make_batch, pairs_of_step, plan_shapes
from qpr_jax.training.mesh import make_mesh, replicated, split
from qpr_jax.training.step import init_state, make_loss, make_train_step

VOCABULARY = 60


def case(devices, steps=3):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 12, 200)
    words = rng.integers(1, VOCABULARY, (200, 12)).astype(np.int32)
    words[np.arange(12) >= lengths[:, None]] = 0
    questions = Questions.of(words, VOCABULARY)
    pairs_at = pairs_of_step(rng.integers(0, 200, (96, 2)).astype(np.int32), 32, seed=0)
    shapes = plan_shapes(questions, pairs_at, devices=devices, steps=3)
    batches = [make_batch(questions, pairs_at(i), shapes, devices=devices) for i in range(steps)]
    return questions, [pairs_at(i) for i in range(steps)], batches


def encoder(**changes):
    return ConvEncoder(
        vocabulary_size=VOCABULARY,
        embedding_dim=8,
        filters=10,
        output_dim=6,
        rngs=nnx.Rngs(0),
        **changes,
    )


def run(devices, **changes):
    """Three steps of SGD with a large rate; losses, gradient norms and parameters."""
    mesh = make_mesh(32, devices)
    _, _, batches = case(devices)
    graph, params = nnx.split(encoder(**changes))
    optimizer = optax.sgd(0.5)
    state = jax.device_put(init_state(params, optimizer), replicated(mesh))
    step = make_train_step(make_loss(graph, mesh, smoothing=0.3), optimizer)
    history = []
    for batch in batches:
        state, metrics = step(state, jax.device_put(batch, split(mesh)))
        history.append([float(metrics["loss"]), float(metrics["grad_norm"])])
    assert int(state.step) == 3
    return history, jax.device_get(nnx.to_pure_dict(state.params))


def test_the_loss_of_a_batch_is_sdml_of_its_pairs_encoded_plainly():
    mesh = make_mesh(32, 1)
    questions, pairs, batches = case(1, steps=1)
    plain = encoder()
    queries, candidates = (plain(jnp.asarray(questions.words[side])) for side in pairs[0].T)
    graph, params = nnx.split(plain)
    loss = make_loss(graph, mesh, smoothing=0.3)
    batch = jax.device_put(batches[0], split(mesh))
    assert float(jax.jit(loss)(params, batch)) == pytest.approx(
        float(sdml_loss(queries, candidates)), abs=1e-5
    )

    def plain_loss(params):
        encoder = nnx.merge(graph, params)
        return sdml_loss(*(encoder(jnp.asarray(questions.words[side])) for side in pairs[0].T))

    expected, got = jax.jit(jax.grad(plain_loss))(params), jax.jit(jax.grad(loss))(params, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, expected)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_any_number_of_devices_takes_the_same_steps(devices):
    history, params = run(devices)
    expected_history, expected_params = run(1)
    np.testing.assert_allclose(history, expected_history, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), params, expected_params)


def test_half_precision_is_one_setting_away_and_keeps_parameters_in_float32():
    history, params = run(1, compute_dtype="bfloat16")
    np.testing.assert_allclose(history, run(1)[0], rtol=0.05)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("devices", [1, 8])
def test_the_whole_step_lowers_for_cpu_gpu_and_tpu(devices, dtype):
    mesh = make_mesh(32, devices)
    _, _, batches = case(devices, steps=1)
    graph, params = nnx.split(encoder(compute_dtype=dtype))
    optimizer = optax.adam(1e-3)
    state = jax.device_put(init_state(params, optimizer), replicated(mesh))
    step = make_train_step(make_loss(graph, mesh, smoothing=0.3), optimizer)
    exported = jax.export.export(step, platforms=["cpu", "cuda", "tpu"])(
        state, jax.device_put(batches[0], split(mesh))
    )
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert exported.nr_devices == devices
    assert "stablehlo.all_gather" in exported.mlir_module() or devices == 1


def test_the_state_is_donated():
    mesh = make_mesh(32, 1)
    _, _, batches = case(1, steps=1)
    graph, params = nnx.split(encoder())
    optimizer = optax.adam(1e-3)
    state = jax.device_put(init_state(params, optimizer), replicated(mesh))
    step = make_train_step(make_loss(graph, mesh, smoothing=0.3), optimizer)
    step(state, jax.device_put(batches[0], split(mesh)))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
