"""Gradients of whole batches and their rounding, on platforms not at hand too; transformers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from qpr_jax import Retriever
from qpr_jax.encoders.load import save_encoder
from qpr_jax.encoders.transformer_encoder import TransformerEncoder, read_transformer
from qpr_jax.losses import batch_loss, sdml_loss
from qpr_jax.training.batches import Loader
from qpr_jax.training.config import OptimizerConfig, load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.distributed import make_mesh, replicate, split_over
from qpr_jax.training.model_families import MODEL_FAMILIES, family_of
from qpr_jax.training.objectives import make_objectives
from qpr_jax.training.run import train_and_evaluate
from qpr_jax.training.train_step import init_state, make_loss, make_optimizer, make_train_step
from tests.encoders.examples import TINY, encode_rows
from tests.lowered import dots

KINDS = {
    "cnn": {"encoder.bag_of_words": True, "encoder.kernel_sizes": (1, 3)},
    "bert": {
        "encoder.pretrained": str(TINY),
        "optimizer.learning_rate": 1e-3,
        "optimizer.weight_decay": 0.01,
        "max_steps": 6,
    },
}


def config_of(kind, **changes):
    settings = {"loss.scale": 3.0, "rerank.candidates": 0} | KINDS[kind]
    return override(load_config("synthetic_sdml:smoke"), settings | changes)


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


def init(config, dataset):
    return family_of(dataset.start).init(config, dataset)


def whole_loss(config, dataset, devices):
    """The loss of the first batch, and its arguments."""
    mesh = make_mesh(devices)
    graph, params = init(config, dataset)
    objectives = make_objectives(config, dataset)
    settings = {"precision": config.precision, "encode_chunk": config.batch.encode_chunk}
    loss = make_loss(graph, mesh, objectives, **settings)
    batch, _ = Loader(config, dataset, objectives, devices=devices).load(0)
    return loss, params, split_over(batch, mesh), jax.random.key(0)


def value_and_gradient(loss, *given):
    (value, _), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(*given)
    return float(value), nnx.to_pure_dict(jax.device_get(gradient))


def test_a_transformers_gradient_is_that_of_the_plain_model_in_chunks_on_devices(datasets):
    """Of blocks of like length, and of the rows of the words alone."""
    config, dataset = config_of("bert", **{"batch.encode_chunk": 3}), datasets["bert"]
    value, gradient = value_and_gradient(*whole_loss(config, dataset, 8))
    graph, params = init(config, dataset)
    rows, _ = make_objectives(config, dataset)[0].draw.at(0)

    def plain(params):
        model = nnx.merge(graph, params)
        sides = (dataset.token_ids[rows[side]] for side in ("queries", "candidates"))
        sides = (config.loss.scale * encode_rows(model, jnp.asarray(side)) for side in sides)
        return batch_loss(sdml_loss, *sides), None

    expected, expected_gradient = value_and_gradient(plain, params)
    assert value == pytest.approx(expected, rel=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), gradient, expected_gradient
    )


@pytest.mark.parametrize(("kind", "lowered_for"), [("cnn", "cuda"), ("bert", "tpu")])
def test_bfloat16_products_have_no_float32_factor(datasets, kind, lowered_for):
    """In the forward and in the backward pass; the results are float32."""
    config = config_of(kind, **{"encoder.compute_dtype": "bfloat16", "batch.encode_chunk": 3})
    graph, params = init(config, datasets[kind])
    objectives = make_objectives(config, datasets[kind])
    tokens = Loader(config, datasets[kind], objectives, devices=1).load(0)[0].tokens

    def encode(params, unique_ids, blocks):
        model = nnx.merge(graph, params)
        vectors = model.encode_blocks(unique_ids, blocks, chunk=config.batch.encode_chunk)
        return (vectors * jnp.arange(1.0, 1 + vectors.shape[1])[None]).sum(), vectors

    step = jax.jit(jax.value_and_grad(encode, has_aux=True))
    inputs = params, jnp.asarray(tokens.unique_ids), [*map(jnp.asarray, tokens.blocks)]
    found = dots(step, *inputs, platform=lowered_for)
    assert {kind for dot in found for kind in dot.types} == {"bf16"}
    assert len(found) >= (9 if kind == "cnn" else 3 * 8)
    shapes = jax.eval_shape(step, *inputs)
    assert {a.dtype for a in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}


def test_bfloat16_gradients_are_close_to_those_of_float32(datasets):
    values, gradients = [], []
    for dtype in ("float32", "bfloat16"):
        config = config_of("cnn", **{"encoder.compute_dtype": dtype})
        value, gradient = value_and_gradient(*whole_loss(config, datasets["cnn"], devices=2))
        values.append(value)
        gradients.append(np.concatenate([np.ravel(a) for a in jax.tree.leaves(gradient)]))
    assert 0 < abs(values[0] - values[1]) < 0.02 * values[0]
    difference = np.linalg.norm(gradients[0] - gradients[1])
    assert 1e-4 < difference / np.linalg.norm(gradients[0]) < 0.05


@pytest.mark.parametrize("name", ["highest", "high"])
def test_each_product_of_a_step_has_the_precision_of_the_setting(datasets, name):
    loss, params, batch, _ = whole_loss(config_of("cnn", precision=name), datasets["cnn"], 1)
    optimizer = make_optimizer(1e-3, OptimizerConfig())
    step = make_train_step(loss, optimizer, seed=0)
    state = replicate(init_state(params, optimizer), make_mesh(1))
    found = {dot.precision for dot in dots(step, state, batch, platform="cuda")}
    assert found == {name.upper()}


def test_a_run_leaves_a_folder_that_sentence_transformers_reads(tmp_path):
    workdir = tmp_path / "run"
    report = train_and_evaluate(config_of("bert"), workdir)
    assert report["test"]["exact"]["per_pair"]["mrr@20"] > 0
    export, query = workdir / "export", ["how do i learn python"]
    for name in ("config.json", "modules.json", "tokenizer.json", "1_Pooling/config.json"):
        assert (export / name).read_bytes() == (TINY / name).read_bytes()
    retriever = Retriever.load(workdir)
    assert isinstance(retriever.encoder, TransformerEncoder)
    vectors = retriever.encode(query)
    assert np.abs(vectors - read_transformer(TINY).encode(query)).max() > 1e-3
    (export / "manifest.json").unlink()  # with no file of ours
    np.testing.assert_allclose(read_transformer(export).encode(query), vectors, atol=1e-6)


def test_index_and_serving_read_as_many_tokens_as_the_training(tmp_path):
    config = config_of("bert", **{"text.max_tokens": 5})
    dataset = load_dataset(config, None, read_transformer(TINY))
    assert dataset.token_ids.shape[1] == 5
    trained = MODEL_FAMILIES["bert"].export(config, dataset, init(config, dataset)[1])
    save_encoder(tmp_path / "export", trained)
    encoder = read_transformer(tmp_path / "export")
    assert encoder.max_tokens == 5
    questions = dataset.data.questions[:20]
    found, _ = encoder.tokenizer.id_lists(questions, encoder.max_tokens)
    assert found == [row[row > 0].tolist() for row in dataset.token_ids[:20]]


def test_without_epochs_the_transformer_is_scored_as_it_is(tmp_path):
    config = config_of("bert", **{"max_epochs": 0, "max_steps": 0})
    report = train_and_evaluate(config, tmp_path / "run")
    retriever = Retriever.load(tmp_path / "run")
    texts = ["how do i learn python", "what is rust"]
    np.testing.assert_array_equal(retriever.encode(texts), read_transformer(TINY).encode(texts))
    assert report["test"]["exact"]["per_pair"]["mrr@20"] > 0
    assert "steps" not in report["timing"]
    assert "Nothing was trained." in (tmp_path / "run" / "report.md").read_text()
