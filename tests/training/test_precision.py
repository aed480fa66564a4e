"""Which products a training computes, and how they are rounded, on platforms not at hand."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from qpr_jax.encoders.transformer_encoder import read_transformer
from qpr_jax.training.config import load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.distributed import make_mesh, replicate, split_over
from qpr_jax.training.losses_config import loss_terms
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.phases import BatchLoader
from qpr_jax.training.train_step import init_state, make_loss, make_optimizer, make_train_step
from tests.lowered import dots

TINY = pathlib.Path(__file__).parent.parent / "encoders" / "tiny_bert"
KINDS = {
    "cnn": {"encoder.bag_of_words": True, "encoder.kernel_sizes": (1, 3)},
    "bert": {"encoder.kind": "bert", "encoder.pretrained": str(TINY)},
}


def config_of(kind, **changes):
    return override(load_config("synthetic_sdml:smoke"), KINDS[kind] | changes)


@pytest.fixture(scope="module", autouse=True)
def fewer_blocks():
    """Each takes seconds to compile."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in KINDS:
            fewer = dataclasses.replace(MODEL_FAMILIES[kind], length_blocks=2)
            patch.setitem(MODEL_FAMILIES, kind, fewer)
        yield


@pytest.fixture(scope="module")
def datasets():
    starts = {"cnn": None, "bert": read_transformer(TINY)}
    return {kind: load_dataset(config_of(kind), None, start) for kind, start in starts.items()}


def encoding(config, dataset, devices=1):
    """The jitted value and gradient of a sum of vectors, and its arguments."""
    graph, params = MODEL_FAMILIES[config.encoder.kind].init(config, dataset)
    batch = BatchLoader(config, dataset, devices=devices).batch_at(0)
    held = params

    def encode(params, unique_ids, blocks):
        model = nnx.merge(graph, params)
        vectors = model.encode_blocks(unique_ids, blocks, chunk=config.batch.encode_chunk)
        return (vectors * jnp.arange(1.0, 1 + vectors.shape[1])[None]).sum(), vectors

    step = jax.jit(jax.value_and_grad(encode, has_aux=True))
    return step, held, jnp.asarray(batch.unique_ids), [*map(jnp.asarray, batch.blocks)]


@pytest.mark.parametrize(("kind", "lowered_for"), [("cnn", "cuda"), ("bert", "tpu")])
def test_bfloat16_products_have_no_float32_factor(datasets, kind, lowered_for):
    """In the forward and in the backward pass; the results are float32."""
    config = config_of(kind, **{"encoder.compute_dtype": "bfloat16", "batch.encode_chunk": 3})
    step, *given = encoding(config, datasets[kind])
    found = dots(step, *given, platform=lowered_for)
    assert {kind for dot in found for kind in dot.types} == {"bf16"}
    assert len(found) >= (9 if kind == "cnn" else 3 * 8)
    shapes = jax.eval_shape(step, *given)
    assert {a.dtype for a in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}


def test_bfloat16_gradients_are_close_to_those_of_float32(datasets):
    found = {}
    for dtype in ("float32", "bfloat16"):
        config = config_of("cnn", **{"encoder.compute_dtype": dtype, "loss.scale": 3.0})
        loss, *given = whole_loss(config, datasets["cnn"], devices=2)
        found[dtype] = jax.jit(jax.value_and_grad(loss, has_aux=True))(*given)
    (full, _), gradient = found["float32"]
    (half, _), rounded = found["bfloat16"]
    assert 0 < abs(float(full - half)) < 0.02 * float(full)
    gradient, rounded = (
        np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)]) for tree in (gradient, rounded)
    )
    assert 1e-4 < np.linalg.norm(gradient - rounded) / np.linalg.norm(gradient) < 0.05


def whole_loss(config, dataset, devices):
    """The loss of a batch, and its arguments."""
    mesh = make_mesh(devices)
    graph, params = MODEL_FAMILIES[config.encoder.kind].init(config, dataset)
    terms = loss_terms(config)
    loss = make_loss(graph, mesh, terms, encode_chunk=config.batch.encode_chunk)
    batch = BatchLoader(config, dataset, devices=devices).batch_at(0)
    return loss, params, split_over(batch, mesh), jax.random.key(0)


@pytest.mark.parametrize("name", ["highest", "high"])
def test_each_product_of_a_step_has_the_precision_of_the_setting(datasets, name):
    loss, params, batch, _ = whole_loss(config_of("cnn", precision=name), datasets["cnn"], 1)
    optimizer = make_optimizer(1e-3)
    step = make_train_step(loss, optimizer, seed=0)
    state = replicate(init_state(params, optimizer), make_mesh(1))
    found = {dot.precision for dot in dots(step, state, batch, platform="cuda")}
    assert found == {name.upper()}
