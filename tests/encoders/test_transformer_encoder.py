"""Transformers against sentence-transformers' own vectors, and in a retriever."""

import concurrent.futures
import dataclasses
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from qpr_jax.encoders.load import load_encoder, save_encoder
from qpr_jax.encoders.transformer_encoder import read_transformer
from qpr_jax.errors import UserError
from qpr_jax.models.bert import BertEncoder, Runtime
from tests.encoders.examples import TINY
from tests.lowered import dots


def golden():
    """Sentences and vectors by `SentenceTransformer(folder, device="cpu").encode`, 6.2.0."""
    with np.load(TINY / "vectors.npz") as file:
        return json.loads(str(file["sentences"])), file["vectors"]


@pytest.fixture
def folder(tmp_path):
    """A copy to change."""
    return pathlib.Path(shutil.copytree(TINY, tmp_path / "model"))


def test_vectors_are_those_of_sentence_transformers():
    sentences, vectors = golden()
    found = read_transformer(TINY).encode(sentences * 40)  # in blocks of all lengths
    np.testing.assert_allclose(found, np.tile(vectors, (40, 1)), atol=2e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_on_any_number_of_devices_vectors_are_the_same(monkeypatch, count):
    sentences, _ = golden()
    assert len(jax.local_devices()) == 8
    expected = read_transformer(TINY).encode(sentences * 40)
    few = jax.local_devices()[:count]
    monkeypatch.setattr(jax, "local_devices", lambda: few)
    encoder = read_transformer(TINY)
    np.testing.assert_allclose(encoder.encode(sentences * 40), expected, atol=1e-6)
    np.testing.assert_allclose(encoder.encode(sentences[:1]), expected[:1], atol=1e-6)


@pytest.mark.parametrize(("backend", "most"), [("cpu", 40), ("gpu", 8), ("tpu", 8)])
def test_an_accelerator_compiles_few_shapes(monkeypatch, backend, most):
    """Four widths at most, and two numbers of texts for each of a large table."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    encoder, shapes = read_transformer(TINY), set()

    def encode(self, token_ids, segments=None):
        shapes.add(token_ids.shape)
        return np.repeat(token_ids[:, :1], encoder.dimension, axis=1)

    monkeypatch.setattr(Runtime, "encode", encode)
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 9, length).tolist() for length in rng.integers(1, 200, 20_000)]
    found = np.zeros((len(ids), encoder.dimension), np.float32)
    Runtime(encoder.shape, encoder.weights).fill(found, ids, 256)
    np.testing.assert_array_equal(found[:, 0], [row[0] for row in ids])
    assert len({width for _, width in shapes}) <= (16 if backend == "cpu" else 4)
    assert len(shapes) <= most
    assert all(count % len(jax.local_devices()) == 0 for count, _ in shapes)


def test_products_are_full_float32():
    model = read_transformer(TINY)
    runtime = Runtime(model.shape, model.weights)
    found = dots(jax.jit(runtime.encode), np.ones((8, 8), np.int32), platform="cuda")
    assert {dot.precision for dot in found} == {"HIGHEST"}
    assert {kind for dot in found for kind in dot.types} == {"f32"}


def test_it_encodes_at_the_precision_of_its_training(tmp_path):
    for settings, expected in (
        ({}, "highest"),
        ({"precision": "high"}, "high"),
        ({"precision": "high", "encoder.compute_dtype": "bfloat16"}, "highest"),
        ({"precision": ["tf32"]}, "highest"),
    ):
        encoder = dataclasses.replace(load_encoder(TINY), settings=settings)
        save_encoder(tmp_path / expected, encoder)
        assert load_encoder(tmp_path / expected).precision == expected


def test_threads_may_share_it():
    sentences, vectors = golden()
    encoder = read_transformer(TINY)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(encoder.encode, [sentences] * 8):
            np.testing.assert_allclose(found, vectors, atol=2e-6)


@pytest.mark.parametrize("pooling", ["cls", "max", "mean"])
def test_padding_changes_no_vector(pooling):
    shape = read_transformer(TINY).shape
    shape = dataclasses.replace(shape, pooling=pooling, normalize=False)
    model, ids = BertEncoder(shape, rngs=nnx.Rngs(0)), np.array([[2, 5, 7, 3]])
    longer = np.pad(ids, ((0, 0), (0, 4)), constant_values=-1)
    np.testing.assert_allclose(model(longer), model(ids), atol=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "max", "mean"])
def test_pooling_is_what_the_folder_says(folder, pooling):
    names = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    flags = {f"pooling_mode_{name}": kind == pooling for kind, name in names.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    encoder = read_transformer(folder)
    assert encoder.shape.pooling == pooling
    question = ["how do i learn python"]
    vectors, mean = encoder.encode(question), read_transformer(TINY).encode(question)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.allclose(vectors, mean) is (pooling == "mean")
    (folder / "modules.json").unlink()  # without it, the mean as it is
    vectors = read_transformer(folder).encode(question)
    norm = np.linalg.norm(vectors)
    assert abs(norm - 1) > 0.01
    np.testing.assert_allclose(vectors / norm, mean, atol=2e-6)


def test_tensors_may_have_the_prefix_bert(folder):
    tensors = load_file(folder / "model.safetensors")
    renamed = {f"bert.{name}": array for name, array in tensors.items()}
    save_file(renamed, folder / "model.safetensors")
    sentences, vectors = golden()
    np.testing.assert_allclose(read_transformer(folder).encode(sentences), vectors, atol=2e-6)


PATHS = [json.dumps([{"type": "a.Normalize", "path": p}]) for p in ("../a", "a/b", "/tmp", ".")]
WRONG = [
    ("tokenizer.json", None),
    ("1_Pooling/config.json", None),
    ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}),
    ("modules.json", "{"),
    ("modules.json", "[1]"),
    *(("modules.json", paths) for paths in PATHS),  # outside of the folder
    ("config.json", "[]"),
    ("config.json", "{}"),
    *(("config.json", {name: "a"}) for name in ("model_type", "hidden_act", "hidden_size")),
    *(("config.json", {name: 24}) for name in ("hidden_size", "num_hidden_layers")),
    ("sentence_bert_config.json", {"max_seq_length": "long"}),
    ("model.safetensors", "nothing"),
]


@pytest.mark.parametrize(("name", "content"), WRONG)
def test_incomplete_and_other_models_are_refused(folder, name, content):
    """`content`: a text, or fields that change, or none for no file."""
    before, named = (folder / name).read_text(errors="replace"), f"{name}.*expected|file {name}"
    (folder / name).unlink()
    if isinstance(content, dict):
        content, named = json.dumps(json.loads(before) | content), "expected"
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(UserError, match=named):
        read_transformer(folder)


@pytest.mark.parametrize("remove", [None, "sentence_bert_config.json"])
def test_the_token_limit_of_a_training_is_saved(folder, tmp_path, remove):
    if remove:
        (folder / remove).unlink()
    encoder = read_transformer(folder)
    assert encoder.max_tokens == 32
    limited = encoder.trained(encoder.weights, {}, max_tokens=6)
    save_encoder(tmp_path / "saved", limited)
    again = load_encoder(tmp_path / "saved")
    assert again.max_tokens == limited.max_tokens == 6
    assert again.fingerprint == limited.fingerprint != encoder.fingerprint
    written = json.loads((tmp_path / "saved" / "sentence_bert_config.json").read_text())
    assert written["max_seq_length"] == 6  # which sentence-transformers reads
    question = "what is the best way to cook rice"
    np.testing.assert_array_equal(again.encode([question]), again.encode(["what is the best"]))
    assert encoder.tokenizer.token_ids(["how", question], 3).truncated == 1  # "how" fits
    same, larger = (encoder.trained(encoder.weights, {}, max_tokens=n) for n in (32, 64))
    assert same.max_tokens == larger.max_tokens == 32
    assert same.fingerprint == larger.fingerprint != limited.fingerprint
    assert same.contents.keys() == encoder.contents.keys()


def test_word_embeddings_are_those_of_whole_words():
    encoder = read_transformer(TINY)
    words, embeddings = encoder.word_embeddings()
    assert {"how", "learn"} <= {*words}
    assert not any("#" in word or "[" in word for word in words)
    ids = [encoder.tokenizer.id_lists([word], 8)[0][0][1] for word in words]
    np.testing.assert_array_equal(embeddings, encoder.weights["embedding"][ids])
