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
from qpr_jax.losses import sdml_loss
from qpr_jax.models.cnn import ConvEncoder
from qpr_jax.text.base import NO_PARTS
from qpr_jax.training.batches import plan_layout
from qpr_jax.training.config import TrainConfig, override
from qpr_jax.training.distributed import make_mesh, replicate, split_over
from qpr_jax.training.losses_config import loss_terms
from qpr_jax.training.sampler import BatchIndices
from qpr_jax.training.train_step import (
    init_state,
    make_loss,
    make_optimizer,
    make_schedule,
    make_train_step,
)
from tests.encoders.examples import encode_rows
from tests.text.plain_ids import make_parts

VOCABULARY, PAIRS, EXTRAS, LABELED, STEPS = 60, 16, 8, 8, 3


def case(devices, extras=0, labeled=0, sums=False):
    """Token ids of 200 questions, rows of sums among them, the draws of three steps, batches."""
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
        for _ in range(STEPS)
    ]
    parts = NO_PARTS
    if sums:  # a third of the words, which share rows with each other and with words
        sizes = rng.integers(1, 7, 25)
        parts = make_parts([rng.integers(1, VOCABULARY, n).tolist() for n in sizes])
        others = VOCABULARY + rng.integers(0, parts.tokens, words.shape)
        chosen = (words > 0) & (rng.random(words.shape) < 0.33)
        words = np.where(chosen, others, words).astype(np.int32)
    positions = draws[0].positions(devices)
    layout = plan_layout(
        lambda step: words[draws[step].questions[positions]],
        steps=STEPS,
        vocabulary_size=VOCABULARY,
        parts=parts,
    )
    first = PAIRS // devices
    batches = []
    for draw in draws:
        rows = draw.questions[positions]
        candidates = clusters[rows[:, first : 2 * first + extras // devices]]
        labels = draw.labels.reshape(devices, -1)
        batches.append(layout.batch(words[rows], candidates, labels=labels))
    return words, parts, clusters, draws, batches


def encoder(**changes):
    shape = {"embedding_dim": 8, "filters": 10, "output_dim": 6}
    return ConvEncoder(vocabulary_size=VOCABULARY, rngs=nnx.Rngs(0), **shape, **changes)


@functools.cache
def objective_of(name):
    """The losses of settings: SDML as it is or with all its options, or a loss of either data."""
    changes = {
        "plain": {},
        "options": {"symmetric": True, "prior": "distance", "distance": "euc"},
        "several": {"names": "triplet,online_contrastive"},
    }[name]
    settings = {f"loss.{key}": value for key, value in changes.items()}
    return loss_terms(override(TrainConfig(), settings | {"loss.mask_own_cluster": bool(changes)}))


def start(devices, objective="plain", frozen_rows=0, **changes):
    """The step, the mesh, and the state before the first step."""
    mesh = make_mesh(devices)
    graph, params = nnx.split(encoder(**changes))
    optimizer = make_optimizer(0.05)
    terms = objective_of(objective) if isinstance(objective, str) else objective
    loss = make_loss(graph, mesh, terms)
    step = make_train_step(loss, optimizer, seed=1, frozen_rows=frozen_rows)
    return step, mesh, replicate(init_state(params, optimizer), mesh)


@functools.cache
def run(devices, objective="plain", extras=0, labeled=0, sums=False, **changes):
    """Three steps with a large rate; losses, gradient norms and parameters."""
    step, mesh, state = start(devices, objective, **changes)
    history = []
    for batch in case(devices, extras, labeled, sums)[-1]:
        state, metrics = step(state, split_over(batch, mesh))
        history.append([float(metrics["loss"]), float(metrics["grad_norm"])])
    assert int(state.step) == STEPS
    return history, jax.device_get(nnx.to_pure_dict(state.params))


@pytest.mark.parametrize("sums", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("optimised")
def test_steps_are_those_of_dense_adam_on_the_pairs_encoded_plainly(sums):
    """Loss, gradient and parameters; the plain encoder has a row for each sum."""
    changes = {"bag_of_words": True} if sums else {}  # it reads the embeddings themselves, too
    words, parts, _, draws, _ = case(1, sums=sums)
    counts = np.zeros((parts.tokens, VOCABULARY), np.float32)
    tokens = np.repeat(np.arange(parts.tokens), np.diff(parts.offsets))
    np.add.at(counts, (tokens, parts.rows), 1)
    graph, params = nnx.split(encoder(**changes))
    optimizer = optax.adam(0.05)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, queries, candidates):
        def loss(params):
            plain = nnx.merge(graph, params)
            table = plain.embedding[...]
            rows = jnp.matmul(counts, table, precision="highest")
            plain.embedding = nnx.Param(jnp.concatenate([table, rows]))
            return sdml_loss(encode_rows(plain, queries), encode_rows(plain, candidates))

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value, optax.tree.norm(gradient)

    expected = []
    for draw in draws:
        sides = (jnp.asarray(words[side]) for side in draw.pairs.T)
        params, state, value, norm = step(params, state, *sides)
        expected.append([float(value), float(norm)])
    history, trained = run(1, sums=sums, **changes)
    np.testing.assert_allclose(history, expected, rtol=1e-4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), trained, nnx.to_pure_dict(params)
    )


SEVERAL = {"objective": "several", "extras": EXTRAS, "labeled": LABELED}


@pytest.mark.parametrize(
    ("devices", "given"),
    [
        (8, {"objective": "options", "extras": EXTRAS}),
        (8, {"sums": True}),
        pytest.param(2, SEVERAL, marks=pytest.mark.slow),
    ],
)
def test_any_number_of_devices_takes_the_same_steps(devices, given):
    history, params = run(devices, **given)
    expected_history, expected_params = run(1, **given)
    np.testing.assert_allclose(history, expected_history, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), params, expected_params)


def test_the_objective_gets_a_key_of_its_own_each_step():
    seen = set()

    def objective(vectors, batch, key, axis_name):
        jax.debug.callback(lambda data: seen.add(tuple(data.tolist())), jax.random.key_data(key))
        return {"length": jax.lax.pmean((vectors**2).sum(), axis_name)}

    run(1, objective)
    jax.effects_barrier()
    assert len(seen) == STEPS


@pytest.mark.parametrize(
    ("devices", "dtype"), [(8, "bfloat16"), pytest.param(1, "float32", marks=pytest.mark.slow)]
)
def test_the_whole_step_lowers_for_cpu_gpu_and_tpu(devices, dtype):
    step, mesh, state = start(devices, compute_dtype=dtype)
    batch = split_over(case(devices)[-1][0], mesh)
    exported = jax.export.export(step, platforms=["cpu", "cuda", "tpu"])(state, batch)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert exported.nr_devices == devices
    assert "stablehlo.all_gather" in exported.mlir_module() or devices == 1


def test_weight_decay_is_of_matrices_but_the_embedding():
    params = nnx.split(encoder())[1]
    optimizer = make_optimizer(1.0, weight_decay=0.1)
    nothing = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(nothing, optimizer.init(params), params)
    for name, update in updates.items():
        moved = any(leaf.any() for leaf in jax.tree.leaves(update))
        assert moved == (name in ("kernels", "projection")), name


def test_with_frozen_rows_all_else_keeps_its_bits_and_the_state_is_donated():
    batches = case(1)[-1]
    read = np.unique(np.concatenate([batch.unique_ids for batch in batches]))
    first_row = int(read[len(read) // 2])  # a word that the questions have
    step, mesh, first = start(1, frozen_rows=first_row)
    before = jax.tree.map(np.array, nnx.to_pure_dict(first.params))
    state = first
    for batch in batches:
        state, metrics = step(state, split_over(batch, mesh))
        assert float(metrics["grad_norm"]) > 0
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))
    after = jax.tree.map(np.array, nnx.to_pure_dict(state.params))
    changed = (after["embedding"] != before["embedding"]).any(axis=1)
    assert np.flatnonzero(changed)[0] == first_row
    after["embedding"][changed] = before["embedding"][changed]
    jax.tree.map(np.testing.assert_array_equal, after, before)


def rates(done, total=100, imitation=0, **changes):
    names = {name: f"optimizer.{name}" for name in ("warmup_steps", "learning_rate_decay")}
    changes = {names.get(name, name): value for name, value in changes.items()}
    settings = override(TrainConfig(), {"optimizer.learning_rate": 0.5} | changes)
    return np.asarray(make_schedule(settings, total, imitation=imitation)(jnp.asarray(done)))


def test_the_rate_grows_with_the_batch_as_the_setting_says():
    for scaling, factor in (("none", 1.0), ("sqrt", 4.0), ("linear", 16.0)):
        changes = {"optimizer.learning_rate_scaling": scaling}
        assert rates(7, batch_size=8192, **changes) == 0.5 * factor
        assert rates(7, batch_size=512, **changes) == 0.5


def test_warm_up_rises_in_even_steps_to_the_rate_and_decay_ends_at_0():
    found = rates([0, 1, 3, 4, 90], warmup_steps=4)
    np.testing.assert_allclose(found, [0.125, 0.25, 0.5, 0.5, 0.5])
    found = rates([0, 10, 50, 99, 100, 101], warmup_steps=11, learning_rate_decay="linear")
    np.testing.assert_allclose(found, [0.5 / 11, 0.45, 0.25, 0.005, 0, 0], rtol=1e-5)
    with pytest.raises(UserError, match=r"`optimizer.warmup_steps`: .* 100 .*, got 101"):
        rates(0, warmup_steps=101)


def test_imitation_has_its_own_batch_and_decay():
    sizes = {"batch_size": 8192, "teacher.batch_size": 2048}
    scaling = {"optimizer.learning_rate_scaling": "sqrt"}
    found = rates([0, 20, 40, 70], imitation=40, learning_rate_decay="linear", **sizes, **scaling)
    np.testing.assert_allclose(found, [1, 0.5, 2, 1], rtol=1e-6)


def test_late_decay_falls_in_the_last_third_and_leaves_the_first_steps_as_they_are():
    found = rates([0, 59, 60, 75, 90], total=90, learning_rate_decay="late")
    np.testing.assert_allclose(found, [0.5, 0.5, 0.5, 0.25, 0], rtol=1e-5)
    longer = rates([0, 59, 60, 75, 90], total=180, learning_rate_decay="late")
    np.testing.assert_allclose(longer, [0.5] * 5)
