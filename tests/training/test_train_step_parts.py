"""Steps with tokens that are sums of rows: those of dense Adam, on any number of devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from qpr_jax.training.batches import lay_out, plan_shapes
from qpr_jax.training.distributed import make_mesh, replicated, split_over
from qpr_jax.training.train_step import init_state, make_loss, make_optimizer, make_train_step
from tests.parts import make_parts
from tests.training.test_train_step import (
    PAIRS,
    VOCABULARY,
    assert_dense_adam,
    case,
    encoder,
    sdml,
)

BAG = {"bag_of_words": True}  # it reads the embeddings themselves, too


def with_parts(words):
    """A third of the words become sums, which share rows with each other and with words."""
    rng = np.random.default_rng(7)
    parts = make_parts([rng.integers(1, VOCABULARY, n).tolist() for n in rng.integers(1, 7, 25)])
    sums = VOCABULARY + rng.integers(0, parts.tokens, words.shape)
    chosen = (words > 0) & (rng.random(words.shape) < 0.33)
    return np.where(chosen, sums, words).astype(np.int32), parts


@functools.cache
def batches(devices):
    words, clusters, draws, _ = case(1)
    words, parts = with_parts(words)
    given = {"vocabulary_size": VOCABULARY, "parts": parts}
    shapes = plan_shapes(lambda i: words[draws[i].shares(devices)], steps=len(draws), **given)
    found = []
    for draw in draws:
        rows = draw.shares(devices)
        own = clusters[rows[:, PAIRS // devices :]]
        found.append(lay_out(words[rows], own, shapes, **given))
    return words, parts, draws, found


@functools.cache
def run(devices):
    """Three steps with a large rate; losses, gradient norms and parameters."""
    mesh = make_mesh(PAIRS, devices)
    graph, params = nnx.split(encoder(**BAG))
    optimizer = make_optimizer(0.05)
    state = jax.device_put(init_state(params, optimizer), replicated(mesh))
    step = make_train_step(make_loss(graph, mesh, sdml), optimizer, seed=1)
    history = []
    for batch in batches(devices)[-1]:
        assert batch.sums is not None
        state, metrics = step(state, split_over(batch, mesh))
        history.append([float(metrics["loss"]), float(metrics["grad_norm"])])
    return history, jax.device_get(nnx.to_pure_dict(state.params))


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_steps_are_those_of_dense_adam_on_a_table_with_the_sums():
    words, parts, draws, _ = batches(1)
    counts = np.zeros((parts.tokens, VOCABULARY), np.float32)
    tokens = np.repeat(np.arange(parts.tokens), np.diff(parts.offsets))
    np.add.at(counts, (tokens, parts.rows), 1)

    def add_sums(plain):
        table = plain.embedding[...]
        sums = jnp.matmul(counts, table, precision="highest")
        plain.embedding = nnx.Param(jnp.concatenate([table, sums]))

    assert_dense_adam(encoder(**BAG), words, draws, *run(1), whole=add_sums)


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow), 8])
def test_any_number_of_devices_takes_the_same_steps(devices):
    history, params = run(devices)
    expected_history, expected_params = run(1)
    np.testing.assert_allclose(history, expected_history, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), params, expected_params)
