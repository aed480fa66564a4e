"""Transformers against sentence-transformers' own vectors, and in a retriever."""

import concurrent.futures
import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from qpr_jax.encoders.load import read_encoder, save_encoder
from qpr_jax.encoders.transformer_encoder import length_blocks, read_transformer
from qpr_jax.encoders.transformer_runtime import compile_layers
from qpr_jax.errors import UserError
from tests.encoders.examples import TINY
from tests.lowered import dots


def golden():
    """Sentences and vectors, made by `tests/encoders/golden_vectors.py`."""
    with np.load(TINY / "vectors.npz") as file:
        return json.loads(str(file["sentences"])), file["vectors"]


@pytest.fixture
def folder(tmp_path):
    """A copy to change."""
    return pathlib.Path(shutil.copytree(TINY, tmp_path / "model"))


def change(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_vectors_are_those_of_sentence_transformers():
    sentences, vectors = golden()
    encoder = read_transformer(TINY)
    found = encoder.encode(sentences)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, vectors, atol=2e-6)
    # One at a time, and many of all lengths: the order and the neighbors change nothing.
    np.testing.assert_allclose([encoder.encode([s])[0] for s in sentences], vectors, atol=2e-6)
    np.testing.assert_allclose(encoder.encode(sentences * 40), np.tile(vectors, (40, 1)), atol=2e-6)
    assert encoder.encode([]).shape == (0, 16)


def test_lone_surrogates_are_replaced():
    cut = "how do i \ud83d learn?"
    words = read_transformer(TINY).encode([cut, cut.replace("\ud83d", "?")])
    np.testing.assert_array_equal(*words)


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


def test_devices_share_a_block_and_do_not_wait_for_each_other():
    model = read_transformer(TINY).model
    runtime = compile_layers(model.shape, model.weights, "float32")
    assert runtime.devices == 8
    encoded = runtime.encode(np.ones((16, 8), np.int32))
    assert [shard.data.shape for shard in encoded.addressable_shards] == [(2, 16)] * 8
    compiled = jax.jit(runtime.encode).lower(np.ones((16, 8), np.int32)).compile().as_text()
    assert not [word for word in ("all-", "collective") if word in compiled]


def test_blocks_hold_each_question_once_in_few_shapes():
    ids = [[7] * n for n in (*range(1, 33), *[5] * 100)]
    for tokens, devices in ((64, 1), (64, 3), (8, 8), (65_536, 4)):
        blocks = list(length_blocks(ids, 32, tokens, devices))
        assert sorted(np.concatenate([rows for rows, _ in blocks])) == [*range(len(ids))]
        for rows, block in blocks:
            share, rest = divmod(len(block), devices)
            assert (rest, share & (share - 1)) == (0, 0)
            assert share == 1 or share * block.shape[1] <= tokens
            assert share < 2 * -(-len(rows) // devices)
            assert [*(block >= 0).sum(axis=1)] == [
                *(len(ids[row]) for row in rows),
                *[0] * (len(block) - len(rows)),
            ]


def test_products_are_full_float32_or_bfloat16_if_set():
    sentences, vectors = golden()
    encoder = read_transformer(TINY, compute_dtype="bfloat16")
    found = encoder.encode(sentences)
    assert found.dtype == np.float32
    assert 1e-4 < np.abs(found - vectors).max() < 0.05
    given = np.ones((8, 8), np.int32)
    for dtype, precision in (("float32", "HIGHEST"), ("bfloat16", "DEFAULT")):
        runtime = compile_layers(encoder.model.shape, encoder.model.weights, dtype)
        found = dots(jax.jit(runtime.encode), given, platform="cuda")
        assert {dot.precision for dot in found} == {precision}
        assert {kind for dot in found for kind in dot.types} == {dtype.replace("loat", "")}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "highest"),
        ({"precision": "high"}, "high"),
        ({"precision": "high", "encoder.compute_dtype": "bfloat16"}, "highest"),
        ({"precision": ["tf32"]}, "highest"),
    ],
)
def test_it_encodes_at_the_precision_of_its_training(tmp_path, settings, expected):
    encoder = dataclasses.replace(read_encoder(TINY), settings=settings)
    save_encoder(tmp_path / "saved", encoder)
    again = read_encoder(tmp_path / "saved")
    assert again.precision == expected
    assert again.identity == read_encoder(TINY).identity


def test_threads_may_share_it():
    sentences, vectors = golden()
    encoder = read_transformer(TINY)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(encoder.encode, [sentences] * 8):
            np.testing.assert_allclose(found, vectors, atol=2e-6)


@pytest.mark.parametrize("pooling", ["cls", "max", "mean"])
def test_pooling_is_what_the_folder_says(folder, pooling):
    flags = {
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": pooling == "max",
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    encoder = read_transformer(folder)
    assert encoder.model.shape.pooling == pooling
    vectors = encoder.encode(["how do i learn python"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    same = np.allclose(vectors, read_transformer(TINY).encode(["how do i learn python"]))
    assert same is (pooling == "mean")


def test_without_modules_it_is_the_mean_as_it_is(folder):
    (folder / "modules.json").unlink()
    vectors = read_transformer(folder).encode(["how do i learn python"])
    norm = np.linalg.norm(vectors)
    assert abs(norm - 1) > 0.01
    np.testing.assert_allclose(
        vectors / norm, read_transformer(TINY).encode(["how do i learn python"]), atol=2e-6
    )


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("config.json", {"model_type": "mpnet"}, "expected `model_type` 'bert', got 'mpnet'"),
        ("config.json", {"hidden_act": "relu"}, "expected `hidden_act` 'gelu', got 'relu'"),
        ("config.json", {"hidden_size": "8"}, "expected a number above 0, got '8'"),
        ("config.json", {"hidden_size": 24}, r"expected \[24, 24\], got \[16, 16\]"),
        ("config.json", {"num_hidden_layers": 3}, "expected the tensor encoder.layer.2"),
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "expected one of mean, cls, max"),
    ],
)
def test_other_models_are_refused(folder, name, fields, message):
    change(folder / name, **fields)
    with pytest.raises(UserError, match=message):
        read_transformer(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", None, "expected the file tokenizer.json, found none"),
        ("1_Pooling/config.json", None, "expected the file 1_Pooling/config.json, found none"),
        ("modules.json", "{", "modules.json: expected JSON"),
        ("modules.json", "[1]", "modules.json: expected modules with `type` and `path`"),
        ("config.json", "[]", "config.json: expected a JSON object, got list"),
        ("config.json", "{}", "expected the sizes of a BERT"),
        ("model.safetensors", "nothing", "expected safetensors"),
    ],
)
def test_incomplete_folders_are_refused(folder, name, text, message):
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_transformer(folder)


def test_reading_it_loads_no_jax():
    code = (
        "import sys; from qpr_jax.encoders.load import read_encoder; "
        f"read_encoder({str(TINY)!r}); sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_other_weights_of_the_same_shape_are_not_compiled_again():
    from qpr_jax.encoders import transformer_runtime

    encoder = read_transformer(TINY)
    before = encoder.encode(["how do i learn python"])
    compiled = transformer_runtime._apply_layer._cache_size()
    weights = jax.tree.map(lambda array: 1.1 * array, encoder.model.weights)
    after = encoder.trained(weights, {}, max_tokens=32).encode(["how do i learn python"])
    assert transformer_runtime._apply_layer._cache_size() == compiled > 0
    assert np.abs(after - before).max() > 1e-4


@pytest.mark.parametrize("path", ["../elsewhere", "a/b", "/tmp", "..", "."])
def test_modules_outside_the_folder_are_refused(tmp_path, path):
    shutil.copytree(TINY, tmp_path / "model")
    modules = json.loads((TINY / "modules.json").read_text())
    modules[1]["path"] = path
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match="expected folders of this folder"):
        read_transformer(tmp_path / "model")


@pytest.mark.parametrize("remove", [None, "sentence_bert_config.json"])
def test_the_token_limit_of_a_training_is_saved(folder, tmp_path, remove):
    if remove:
        (folder / remove).unlink()
    encoder = read_transformer(folder)
    assert encoder.max_tokens == 32
    limited = encoder.trained(encoder.model.weights, {}, max_tokens=6)
    save_encoder(tmp_path / "saved", limited)
    again = read_encoder(tmp_path / "saved")
    assert again.max_tokens == limited.max_tokens == 6
    assert again.identity == limited.identity != encoder.identity
    written = json.loads((tmp_path / "saved" / "sentence_bert_config.json").read_text())
    assert written["max_seq_length"] == 6  # which sentence-transformers reads
    question = "what is the best way to cook rice"
    np.testing.assert_array_equal(again.encode([question]), again.encode(["what is the best"]))
    same, larger = (encoder.trained(encoder.model.weights, {}, max_tokens=n) for n in (32, 64))
    assert same.max_tokens == larger.max_tokens == 32
    assert same.identity == larger.identity != limited.identity
    assert same.contents.keys() == encoder.contents.keys()


def test_word_embeddings_are_those_of_whole_words():
    encoder = read_transformer(TINY)
    words, embeddings = encoder.word_embeddings()
    assert {"how", "learn"} <= {*words}
    assert not any("#" in word or "[" in word for word in words)
    ids = [encoder.tokenizer.id_lists([word], 8)[0][1] for word in words]
    np.testing.assert_array_equal(embeddings, encoder.model.weights["embedding"][ids])
