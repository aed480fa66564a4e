"""A step is one of dense Adam on plainly encoded pairs, on any number of devices; its rates."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from qpr_jax.errors import UserError
from qpr_jax.losses import batch_loss, sdml_loss
from qpr_jax.models import cnn
from qpr_jax.training import train_step
from qpr_jax.training.config import OptimizerConfig, TrainConfig, load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.objectives import make_objectives
from qpr_jax.training.train import plan
from tests.encoders.examples import encode_rows

STEPS = 3
EXTRAS = {"loss.mask_own_cluster": True}
SDML = {"loss.symmetric": True, "loss.distance": "euc"}
KINDS = {
    "plain": {},
    "options": SDML | EXTRAS | {"batch.token_dropout": 0.2},
    "several": {"loss.names": "triplet,online_contrastive"} | EXTRAS,
    # Half of the words have no row of their own.
    "sums": {"text.subwords": True, "text.vocabulary_size": 100, "encoder.bag_of_words": True},
}
KINDS["convolved sums"] = KINDS["sums"]


def config_of(kind, devices=1, **changes):
    """The smoke run with a large rate."""
    fixed = {"batch_size": 16, "optimizer.learning_rate": 0.05, "devices": devices}
    return override(load_config("synthetic_sdml:smoke"), fixed | KINDS[kind] | changes)


@functools.cache
def dataset_of(kind):
    return load_dataset(config_of(kind), None)


def start(kind, devices, **changes):
    """The phase of a training, and its state before the first step."""
    (phase,), state = plan(config_of(kind, devices, **changes), dataset_of(kind))
    return phase, state


@functools.cache
def run(kind, devices):
    """Losses and gradient norms of some steps, and the parameters after them."""
    phase, first = start(kind, devices)
    state, history = first, []
    for number in range(STEPS):
        batch, _ = phase.load(number)
        assert (batch.tokens.sums is not None) == ("sums" in kind)
        state, metrics = phase.step(state, batch)
        history.append([float(metrics["loss"]), float(metrics["grad_norm"])])
    assert int(state.step) == STEPS
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))  # donated
    return history, jax.device_get(nnx.to_pure_dict(state.params))


@pytest.mark.usefixtures("optimised")
def test_steps_are_those_of_dense_adam_on_the_pairs_encoded_plainly():
    """Loss, gradient and parameters; of sums, see `tests/models/test_cnn.py`."""
    config, dataset = config_of("plain"), dataset_of("plain")
    graph, params = MODEL_FAMILIES["cnn"].init(config, dataset)
    optimizer = optax.adam(0.05)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, queries, candidates):
        def loss(params):
            plain = nnx.merge(graph, params)
            sides = encode_rows(plain, queries), encode_rows(plain, candidates)
            return batch_loss(sdml_loss, *sides)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value, optax.tree.norm(gradient)

    expected, draw = [], make_objectives(config, dataset)[0].draw
    for number in range(STEPS):
        rows, _ = draw.at(number)
        sides = (dataset.token_ids[rows[side]] for side in ("queries", "candidates"))
        params, state, value, norm = step(params, state, *sides)
        expected.append([float(value), float(norm)])
    history, trained = run("plain", 1)
    np.testing.assert_allclose(history, expected, rtol=1e-4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), trained, nnx.to_pure_dict(params)
    )


@pytest.mark.parametrize(
    ("kind", "devices"),
    [("options", 8), ("sums", 8), pytest.param("several", 2, marks=pytest.mark.slow)],
)
def test_any_number_of_devices_takes_the_same_steps(kind, devices):
    history, params = run(kind, devices)
    expected_history, expected_params = run(kind, 1)
    np.testing.assert_allclose(history, expected_history, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), params, expected_params)


@pytest.mark.parametrize("devices", [1, 8])
def test_the_convolution_of_a_tpu_takes_the_same_steps(devices, monkeypatch):
    expected_history, expected_params = run("sums", 1)
    monkeypatch.setattr(cnn, "convolves", lambda: True)
    history, params = run("convolved sums", devices)
    np.testing.assert_allclose(history, expected_history, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), params, expected_params)


def test_random_negatives_are_others_in_each_step():
    still = {"loss.names": "triplet", "optimizer.learning_rate": 1e-12}
    phase, state = start("plain", 1, **still)
    losses = set()
    for _ in range(STEPS):
        state, metrics = phase.step(state, phase.load(0)[0])
        losses.add(round(float(metrics["loss"]), 4))
    assert len(losses) == STEPS


@pytest.mark.parametrize(
    ("devices", "dtype"), [(8, "bfloat16"), pytest.param(1, "float32", marks=pytest.mark.slow)]
)
def test_the_whole_step_lowers_for_cpu_gpu_and_tpu(devices, dtype):
    phase, state = start("plain", devices, **{"encoder.compute_dtype": dtype})
    platforms = ("cpu", "cuda", "tpu")
    exported = jax.export.export(phase.step, platforms=platforms)(state, phase.load(0)[0])
    assert exported.platforms == platforms
    assert exported.nr_devices == devices
    assert "stablehlo.all_gather" in exported.mlir_module() or devices == 1


def test_weight_decay_is_of_matrices_but_the_embedding():
    params = start("plain", 1)[1].params
    optimizer = train_step.make_optimizer(1.0, OptimizerConfig(weight_decay=0.1))
    nothing = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(nothing, optimizer.init(params), params)
    for name, update in updates.items():
        moved = any(leaf.any() for leaf in jax.tree.leaves(update))
        assert moved == (name in ("kernels", "projection")), name


def test_squared_gradients_decay_by_beta2():
    params = {"projection": jnp.zeros(2)}
    for beta2 in (0.999, 0.5):
        optimizer = train_step.make_optimizer(1.0, OptimizerConfig(beta2=beta2))
        _, state = optimizer.update({"projection": jnp.ones(2)}, optimizer.init(params), params)
        np.testing.assert_allclose(optax.tree.get(state, "nu")["projection"], 1 - beta2, rtol=1e-4)


def rates(done, changes, phases=(100,)):
    changes = {f"optimizer.{name}": value for name, value in changes.items()}
    settings = override(TrainConfig(), {"optimizer.learning_rate": 0.5} | changes)
    return np.asarray(train_step.make_schedule(settings.optimizer, phases)(jnp.asarray(done)))


LATE = {"learning_rate_decay": "late"}
RATES = [
    # Warm-up rises in even steps to the rate, and decay ends at 0.
    ({"warmup_steps": 4}, {0: 0.125, 1: 0.25, 3: 0.5, 4: 0.5, 90: 0.5}),
    (
        {"warmup_steps": 11, "learning_rate_decay": "linear"},
        {0: 0.5 / 11, 10: 0.45, 50: 0.25, 99: 0.005, 100: 0, 101: 0},
    ),
    # Late decay falls in the last third.
    (LATE, {0: 0.5, 66: 0.5, 75: 0.375, 90: 0.15, 100: 0}),
]


def test_rates_of_steps():
    for changes, expected in RATES:
        found = rates([*expected], changes)
        np.testing.assert_allclose(found, [*expected.values()], rtol=1e-5, err_msg=f"{changes}")
    found = rates([0, 20, 40, 70], {"learning_rate_decay": "linear"}, phases=(40, 60))
    np.testing.assert_allclose(found, [0.5, 0.25, 0.5, 0.25], rtol=1e-6)
    longer = rates([0, 66, 75, 100], LATE, phases=(180,))
    np.testing.assert_allclose(longer, [0.5] * 4)
    with pytest.raises(UserError, match=r"`optimizer.warmup_steps`: .* 100 .*, got 101"):
        rates(0, {"warmup_steps": 101})
