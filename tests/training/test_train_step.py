import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from qpr_jax.losses import online_contrastive_loss, sdml_loss, triplet_loss
from qpr_jax.models.cnn import ConvEncoder
from qpr_jax.training.batches import lay_out, plan_shapes
from qpr_jax.training.distributed import make_mesh, replicated, split_over
from qpr_jax.training.sampler import BatchIndices
from qpr_jax.training.train_step import init_state, make_loss, make_optimizer, make_train_step

# Outside what JAX promises to read in later versions, which no export here is for.
KERNEL = jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")
VOCABULARY, PAIRS, EXTRAS, LABELLED = 60, 16, 8, 8


def sdml(vectors, batch, key, axis_name):
    queries, candidates, *_ = batch.split(vectors)
    return {"sdml": sdml_loss(queries, candidates, axis_name=axis_name)}


def sdml_of_all_options(vectors, batch, key, axis_name):
    queries, candidates, *_ = batch.split(vectors)
    value = sdml_loss(
        queries,
        candidates,
        clusters=batch.clusters,
        symmetric=True,
        prior="distance",
        distance="euc",
        axis_name=axis_name,
    )
    return {"sdml": value}


def random_triplets(vectors, batch, key, axis_name):
    queries, candidates, *_ = batch.split(vectors)
    given = {"clusters": batch.clusters, "key": key, "axis_name": axis_name}
    return {"triplet": triplet_loss(queries, candidates, **given)}


def several(vectors, batch, key, axis_name):
    *_, left, right = batch.split(vectors)
    labeled = online_contrastive_loss(left, right, batch.labels, axis_name=axis_name)
    return random_triplets(vectors, batch, key, axis_name) | {"labelled": labeled}


def case(devices, steps=3, extras=0, labeled=0):
    """Word ids of 200 questions, the draws of some steps and their batches."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 12, 200)
    words = rng.integers(1, VOCABULARY, (200, 12)).astype(np.int32)
    words[np.arange(12) >= lengths[:, None]] = 0
    clusters = rng.integers(-1, 20, 200).astype(np.int32)
    draws = [
        BatchIndices(
            rng.integers(0, 200, (PAIRS, 2)),
            rng.integers(0, 200, extras),
            rng.integers(0, 200, (labeled, 2)),
            rng.integers(0, 2, labeled),
        )
        for _ in range(steps)
    ]
    shapes = plan_shapes(
        lambda step: words[draws[step].shares(devices)], steps=steps, vocabulary_size=VOCABULARY
    )
    batches = []
    for draw in draws:
        rows = draw.shares(devices)
        pairs = PAIRS // devices
        candidates = clusters[rows[:, pairs : 2 * pairs + extras // devices]]
        labels = draw.labels.reshape(devices, -1)
        batches.append(
            lay_out(words[rows], candidates, shapes, vocabulary_size=VOCABULARY, labels=labels)
        )
    return words, clusters, draws, batches


def encoder(**changes):
    return ConvEncoder(
        vocabulary_size=VOCABULARY,
        embedding_dim=8,
        filters=10,
        output_dim=6,
        rngs=nnx.Rngs(0),
        **changes,
    )


@functools.cache
def run(devices, objective=sdml, extras=0, labeled=0, **changes):
    """Three steps with a large rate; losses, gradient norms and parameters."""
    mesh = make_mesh(PAIRS, devices)
    batches = case(devices, extras=extras, labeled=labeled)[-1]
    graph, params = nnx.split(encoder(**changes))
    optimizer = make_optimizer(0.05)
    state = jax.device_put(init_state(params, optimizer), replicated(mesh))
    step = make_train_step(make_loss(graph, mesh, objective), optimizer, seed=1)
    history = []
    for batch in batches:
        state, metrics = step(state, split_over(batch, mesh))
        history.append([float(metrics["loss"]), float(metrics["grad_norm"])])
    assert int(state.step) == 3
    return history, jax.device_get(nnx.to_pure_dict(state.params))


@pytest.mark.usefixtures("optimised")
def test_steps_are_those_of_dense_adam_on_the_pairs_encoded_plainly():
    """Loss, gradient and parameters."""
    words, _, draws, _ = case(1)
    assert_dense_adam(encoder(), words, draws, *run(1))


def assert_dense_adam(model, words, draws, history, trained, whole=lambda model: None):
    """Losses, norms and parameters are those of Adam over all rows, with each pair encoded plainly.

    `whole` completes the table of a model before it encodes.
    """
    graph, params = nnx.split(model)
    optimizer = optax.adam(0.05)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, queries, candidates):
        def loss(params):
            plain = nnx.merge(graph, params)
            whole(plain)
            return sdml_loss(plain(queries), plain(candidates))

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value, optax.tree.norm(gradient)

    expected = []
    for draw in draws:
        sides = (jnp.asarray(words[side]) for side in draw.pairs.T)
        params, state, value, norm = step(params, state, *sides)
        expected.append([float(value), float(norm)])
    np.testing.assert_allclose(history, expected, rtol=1e-4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), trained, nnx.to_pure_dict(params)
    )


@pytest.mark.parametrize(
    ("devices", "objective"),
    [
        (8, sdml_of_all_options),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *((devices, sdml_of_all_options) for devices in (2, 4)),
                *(
                    (2, several),
                    (2, random_triplets),
                    (8, random_triplets),
                    (8, several),
                    (8, sdml),
                ),
            )
        ),
    ],
)
def test_any_number_of_devices_takes_the_same_steps(devices, objective):
    extras = 0 if objective is sdml else EXTRAS
    labeled = LABELLED if objective is several else 0
    history, params = run(devices, objective, extras, labeled)
    expected_history, expected_params = run(1, objective, extras, labeled)
    np.testing.assert_allclose(history, expected_history, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), params, expected_params)


def test_the_objective_gets_clusters_labels_and_a_key_of_its_own_each_step():
    _, clusters, draws, batches = case(1, steps=2, extras=EXTRAS, labeled=LABELLED)
    seen = []

    def objective(vectors, batch, key, axis_name):
        shown = batch.clusters, batch.labels, jax.random.key_data(key)
        jax.debug.callback(lambda *given: seen.append(given), *shown)
        parts = [len(part) for part in batch.split(vectors)]
        assert parts == [PAIRS, PAIRS + EXTRAS, LABELLED, LABELLED]
        return {"length": jax.lax.pmean((vectors**2).sum(), axis_name)}

    mesh = make_mesh(PAIRS, 1)
    graph, params = nnx.split(encoder())
    optimizer = make_optimizer(0.05)
    step = make_train_step(make_loss(graph, mesh, objective), optimizer, seed=1)
    state = jax.device_put(init_state(params, optimizer), replicated(mesh))
    for batch in batches:
        state, _ = step(state, split_over(batch, mesh))
    jax.block_until_ready(state)
    jax.effects_barrier()
    for draw, (given, labels, _) in zip(draws, seen, strict=True):
        expected = clusters[np.concatenate([draw.pairs[:, 1], draw.extra_candidates])]
        np.testing.assert_array_equal(given, expected)
        np.testing.assert_array_equal(labels, draw.labels)
    assert seen[0][2].tolist() != seen[1][2].tolist()


def test_half_precision_is_one_setting_away_and_keeps_parameters_in_float32():
    history, params = run(1, compute_dtype="bfloat16")
    np.testing.assert_allclose(history, run(1)[0], rtol=0.05)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("devices", "dtype"),
    [
        (8, "bfloat16"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((1, "float32"), (1, "bfloat16"), (8, "float32"))
        ),
    ],
)
def test_the_whole_step_lowers_for_cpu_gpu_and_tpu(devices, dtype):
    mesh = make_mesh(PAIRS, devices)
    batches = case(devices, steps=1)[-1]
    graph, params = nnx.split(encoder(compute_dtype=dtype))
    optimizer = make_optimizer(1e-3)
    state = jax.device_put(init_state(params, optimizer), replicated(mesh))
    step = make_train_step(make_loss(graph, mesh, sdml), optimizer, seed=0)
    exported = jax.export.export(step, platforms=["cpu", "cuda", "tpu"])(
        state, split_over(batches[0], mesh)
    )
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert exported.nr_devices == devices
    assert "stablehlo.all_gather" in exported.mlir_module() or devices == 1


def test_the_state_is_donated():
    mesh = make_mesh(PAIRS, 1)
    batches = case(1, steps=1)[-1]
    graph, params = nnx.split(encoder())
    optimizer = make_optimizer(1e-3)
    state = jax.device_put(init_state(params, optimizer), replicated(mesh))
    step = make_train_step(make_loss(graph, mesh, sdml), optimizer, seed=0)
    step(state, split_over(batches[0], mesh))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_weight_decay_is_of_matrices_but_the_embedding():
    params = nnx.split(encoder())[1]
    optimizer = make_optimizer(1.0, weight_decay=0.1)
    nothing = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(nothing, optimizer.init(params), params)
    moved = {
        name: bool(jnp.any(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(update)])))
        for name, update in updates.items()
    }
    assert moved == {"biases": False, "embedding": False, "kernels": True, "projection": True}


def test_with_frozen_rows_all_else_keeps_its_bits():
    mesh = make_mesh(PAIRS, 1)
    graph, params = nnx.split(encoder())
    optimizer = make_optimizer(0.05)
    before = jax.tree.map(np.array, nnx.to_pure_dict(params))
    state = jax.device_put(init_state(params, optimizer), replicated(mesh))
    step = make_train_step(make_loss(graph, mesh, sdml), optimizer, seed=1, frozen_rows=50)
    for batch in case(1)[-1]:
        state, metrics = step(state, split_over(batch, mesh))
        assert float(metrics["grad_norm"]) > 0
    after = jax.tree.map(np.array, nnx.to_pure_dict(state.params))
    assert (after["embedding"][50:] != before["embedding"][50:]).any()
    after["embedding"][50:] = before["embedding"][50:]
    jax.tree.map(np.testing.assert_array_equal, after, before)
