"""A student of 16 dimensions and a teacher of 1,024: a folder, or a file of vectors."""

import json
import pathlib
import re
import shutil

import numpy as np
import pytest

from qpr_jax.encoders.sentence_transformers import serialize_tensors
from qpr_jax.encoders.transformer_encoder import read_transformer
from qpr_jax.errors import UserError
from qpr_jax.retriever import Retriever
from qpr_jax.training.dataset import load_dataset, with_teacher
from qpr_jax.training.main import train_and_evaluate
from qpr_jax.training.overrides import load_config, override
from qpr_jax.training.teacher import make_teacher

TINY = pathlib.Path(__file__).parent.parent / "encoders" / "tiny_bert"
SIZES = {"hidden_size": 1024, "intermediate_size": 8, "num_attention_heads": 16}
TEXTS = [f"how do i {verb} {thing}" for verb in ("cook", "grow", "eat") for thing in "abcdefgh"]


@pytest.fixture
def large(tmp_path) -> pathlib.Path:
    """A folder of sentence-transformers with one layer, CLS pooling and random weights."""
    folder = tmp_path / "large"
    shutil.copytree(TINY, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | SIZES | {"num_hidden_layers": 1}))
    pooling = {"word_embedding_dimension": 1024, "pooling_mode_cls_token": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    size, inner, rng = 1024, SIZES["intermediate_size"], np.random.default_rng(0)
    rows = {"word": config["vocab_size"], "position": config["max_position_embeddings"]}
    at = "encoder.layer.0"
    square = ("self.query", "self.key", "self.value", "output.dense")
    linear = {f"{at}.attention.{name}": (size, size) for name in square} | {
        f"{at}.intermediate.dense": (inner, size),
        f"{at}.output.dense": (size, inner),
    }
    shapes = {f"embeddings.{name}_embeddings.weight": (n, size) for name, n in rows.items()}
    shapes["embeddings.token_type_embeddings.weight"] = (config["type_vocab_size"], size)
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    tensors = {n: rng.normal(scale=0.1, size=s).astype(np.float32) for n, s in shapes.items()}
    for name in ("embeddings", f"{at}.attention.output", f"{at}.output"):
        tensors[f"{name}.LayerNorm.weight"] = np.ones(size, np.float32)
        tensors[f"{name}.LayerNorm.bias"] = np.zeros(size, np.float32)
    (folder / "model.safetensors").write_bytes(serialize_tensors(tensors))
    return folder


def test_a_folder_teaches_its_principal_components(large, tmp_path):
    config = load_config("synthetic_sdml")
    encoder = read_transformer(large)
    assert encoder.dimension == 1024
    teacher = make_teacher(config, encoder, [TEXTS], np.arange(len(TEXTS)), 16)
    rows = np.arange(len(TEXTS))
    vectors = encoder.encode(TEXTS)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(teacher.vectors(rows), vectors, atol=1e-5)
    # The best of all maps to 16 dimensions, by the singular values that it leaves out.
    products, kept = vectors @ vectors.T, (vectors @ teacher.components)
    lost = np.linalg.norm(products - kept @ kept.T)
    left_out = np.linalg.svd(vectors, compute_uv=False)[16:] ** 2
    assert lost == pytest.approx(np.linalg.norm(left_out), rel=1e-2, abs=1e-4)
    np.testing.assert_allclose(np.linalg.norm(teacher.targets(rows), axis=1), 1, atol=1e-5)


@pytest.fixture
def config(tmp_path):
    """A student of the vectors in a file, which is not there yet."""
    given = {
        "teacher.model": str(tmp_path / "vectors.npy"),
        "teacher.epochs": 1,
        "teacher.batch_size": 64,
        "encoder.normalize": True,
        "max_epochs": 0,
        "max_steps": 4,
        "devices": 1,
    }
    return override(load_config("synthetic_sdml:smoke"), given)


def write_vectors(config, start) -> np.ndarray:
    """Do as the guide says: the questions that the error of `start` lists, encoded elsewhere."""
    with pytest.raises(UserError, match=r"got none \(No such file") as caught:
        start()
    (listed,) = re.findall(r"the questions, in order, are in (\S+?);", str(caught.value))
    lines = pathlib.Path(listed).read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["question"] for line in lines]
    words = sorted({word for text in questions for word in text.split()})
    table = np.random.default_rng(0).normal(size=(len(words), 1024))
    place = {word: row for row, word in enumerate(words)}
    sums = [table[[place[word] for word in text.split()]].sum(axis=0) for text in questions]
    vectors = np.array(sums, np.float16)
    np.save(config.teacher.model, vectors)
    return vectors


def test_vectors_of_a_model_that_ran_elsewhere(config):
    dataset = load_dataset(config, None)
    vectors = write_vectors(config, lambda: with_teacher(config, dataset, None))
    teacher = with_teacher(config, dataset, None).teacher
    rows = np.array([3, 0, 8])
    unit = vectors / np.linalg.norm(vectors.astype(np.float32), axis=1, keepdims=True)
    np.testing.assert_allclose(teacher.vectors(rows), unit[rows], atol=1e-3)
    assert teacher.targets(rows).shape == (3, config.encoder.output_dim) == (3, 16)


@pytest.mark.slow
def test_the_guide_from_start_to_end(config, tmp_path):
    write_vectors(config, lambda: train_and_evaluate(config, tmp_path / "run"))
    report = train_and_evaluate(config, tmp_path / "run")
    assert 0 < report["test"]["agreement"] <= 1
    assert Retriever.load(tmp_path / "run").encoder.dimension == config.encoder.output_dim == 16
