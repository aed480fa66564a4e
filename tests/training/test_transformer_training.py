"""Transformers trained further: the gradient, its chunks, devices, memory, and what is written."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from qpr_jax import Retriever
from qpr_jax.encoders.load import save_encoder
from qpr_jax.encoders.sentence_transformers import (
    named_tensors,
    parse_model,
    parse_weights,
)
from qpr_jax.encoders.transformer_encoder import TransformerEncoder, read_transformer
from qpr_jax.errors import UserError
from qpr_jax.losses import sdml_loss
from qpr_jax.training.config import load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.distributed import make_mesh, split_over
from qpr_jax.training.losses_config import loss_terms
from qpr_jax.training.main import train_and_evaluate
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.phases import BatchLoader
from qpr_jax.training.train_step import make_loss
from tests.runs import write_encoder

TINY = pathlib.Path(__file__).parent.parent / "encoders" / "tiny_bert"


def config_of(**changes):
    settings = {
        "encoder.kind": "bert",
        "encoder.pretrained": str(TINY),
        "loss.scale": 3.0,
        "optimizer.learning_rate": 1e-3,
        "optimizer.weight_decay": 0.01,
        "max_steps": 6,
        "rerank.candidates": 0,
    }
    return override(load_config("synthetic_sdml:smoke"), settings | changes)


@pytest.fixture(scope="module", autouse=True)
def fewer_blocks():
    """Each takes seconds to compile."""
    with pytest.MonkeyPatch.context() as patch:
        fewer = dataclasses.replace(MODEL_FAMILIES["bert"], length_blocks=2)
        patch.setitem(MODEL_FAMILIES, "bert", fewer)
        yield


@pytest.fixture(scope="module")
def dataset():
    return load_dataset(config_of(), None, read_transformer(TINY))


def loss_and_gradient(config, dataset, devices):
    feed = BatchLoader(config, dataset, devices=devices)
    mesh = make_mesh(devices)
    graph, params = MODEL_FAMILIES[config.encoder.kind].init(config, dataset)
    loss = make_loss(graph, mesh, loss_terms(config), encode_chunk=config.batch.encode_chunk)
    batch = feed.batch_at(0)
    value, gradient = jax.jit(jax.value_and_grad(lambda *given: loss(*given)[0]))(
        params, split_over(batch, mesh), jax.random.key(0)
    )
    gradient = nnx.to_pure_dict(jax.device_get(gradient))
    return float(value), gradient, feed.indices(0)


def assert_close(gradient, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), gradient, expected)


def test_a_step_has_the_gradient_of_the_plain_model_in_chunks_and_on_devices_too(dataset):
    """Of blocks of like length, and of the rows of the words alone."""
    config = config_of()
    value, gradient, draw = loss_and_gradient(config, dataset, 1)
    graph, params = MODEL_FAMILIES[config.encoder.kind].init(config, dataset)

    def plain(params):
        encode = nnx.merge(graph, params)
        sides = (jnp.asarray(dataset.token_ids[side]) for side in draw.pairs.T)
        return sdml_loss(*(config.loss.scale * encode(side) for side in sides))

    expected, expected_gradient = jax.jit(jax.value_and_grad(plain))(params)
    assert value == pytest.approx(float(expected), rel=1e-5)
    assert_close(gradient, nnx.to_pure_dict(expected_gradient))
    found, in_parts, _ = loss_and_gradient(config_of(**{"batch.encode_chunk": 3}), dataset, 8)
    assert found == pytest.approx(value, rel=1e-5)
    assert_close(in_parts, gradient)


def test_a_run_leaves_a_folder_that_sentence_transformers_reads(tmp_path):
    workdir = tmp_path / "run"
    report = train_and_evaluate(config_of(), workdir)
    assert report["test"]["exact"]["per_pair"]["mrr@20"] > 0
    export, query = workdir / "export", ["how do i learn python"]
    for name in ("config.json", "modules.json", "tokenizer.json", "1_Pooling/config.json"):
        assert (export / name).read_bytes() == (TINY / name).read_bytes()
    retriever = Retriever.load(workdir)
    assert isinstance(retriever.encoder, TransformerEncoder)
    assert retriever.encoder.settings["encoder.kind"] == "bert"
    vectors = retriever.encode(query)
    assert np.abs(vectors - read_transformer(TINY).encode(query)).max() > 1e-3
    (export / "manifest.json").unlink()  # with no file of ours
    np.testing.assert_allclose(read_transformer(export).encode(query), vectors, atol=1e-6)


def test_index_and_serving_read_as_many_tokens_as_the_training(tmp_path):
    config = config_of(**{"text.max_tokens": 5})
    dataset = load_dataset(config, None, read_transformer(TINY))
    assert dataset.token_ids.shape[1] == 5
    _, params = MODEL_FAMILIES[config.encoder.kind].init(config, dataset)
    family = MODEL_FAMILIES["bert"]
    trained = family.export(config, dataset, params)
    save_encoder(tmp_path / "export", trained)
    encoder = read_transformer(tmp_path / "export")
    assert encoder.max_tokens == 5
    expected = encoder.encode_ids(dataset.token_ids[:20])
    np.testing.assert_allclose(encoder.encode(dataset.data.questions[:20]), expected, atol=1e-6)


def test_without_epochs_the_transformer_is_scored_as_it_is(tmp_path):
    report = train_and_evaluate(config_of(**{"max_epochs": 0, "max_steps": 0}), tmp_path / "run")
    retriever = Retriever.load(tmp_path / "run")
    texts = ["how do i learn python", "what is rust"]
    np.testing.assert_array_equal(retriever.encode(texts), read_transformer(TINY).encode(texts))
    assert report["test"]["exact"]["per_pair"]["mrr@20"] > 0
    assert "steps" not in report["timing"]
    assert "Nothing was trained." in (tmp_path / "run" / "report.md").read_text()


@pytest.mark.parametrize(
    ("start", "message"), [("cnn", "got .*; name such a folder"), ("", "bert has no fresh weights")]
)
def test_what_a_transformer_cannot_start_from(tmp_path, start, message):
    write_encoder(tmp_path / "cnn")
    config = config_of(**{"encoder.pretrained": start and str(tmp_path / start)})
    with pytest.raises(UserError, match=rf"`encoder\.pretrained`: .*{message}"):
        train_and_evaluate(config, tmp_path / "run")


def test_weights_are_written_as_they_are_read_with_or_without_the_prefix_bert():
    files = {name: (TINY / name).read_bytes() for name in ("config.json", "model.safetensors")}
    model = parse_model(files, TINY)
    tensors = named_tensors(model.weights)
    for prefix in ("", "bert."):
        renamed = {prefix + name: array for name, array in tensors.items()}
        again = parse_weights(renamed, model.shape, TINY)
        jax.tree.map(np.testing.assert_array_equal, again, model.weights)
