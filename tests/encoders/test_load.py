import shutil

import pytest

from qpr_jax.encoders import named
from qpr_jax.encoders.load import contains_encoder, read_encoder, save_encoder
from qpr_jax.encoders.named import encoder_folder
from qpr_jax.errors import UserError
from qpr_jax.retriever import Retriever
from tests.encoders.examples import QUESTIONS, TINY, cnn_encoder


@pytest.fixture
def encoder():
    return cnn_encoder()


@pytest.fixture
def published(tmp_path, encoder):
    folder = tmp_path / "models" / "mine"
    save_encoder(folder, encoder, card="# mine\n")
    return folder


def test_a_folder_is_written_unless_it_holds_the_encoder(tmp_path, encoder, published):
    assert contains_encoder(published, encoder)
    save_encoder(published, encoder)  # keeps the card
    assert (published / "README.md").is_file()
    other = cnn_encoder(max_tokens=3)
    assert not contains_encoder(published, other)
    save_encoder(published, other)
    assert contains_encoder(published, other)
    assert not (published / "README.md").exists()
    (published / "model.safetensors").write_bytes(b"damaged")
    assert not contains_encoder(published, other)
    save_encoder(published, other)
    assert read_encoder(published).identity == other.identity


def test_a_published_encoder_answers_for_an_index_of_the_trained_one(encoder, published, tmp_path):
    save_encoder(tmp_path / "run" / "export", encoder)
    questions = [question for question in QUESTIONS if question]
    Retriever.build(questions, run=tmp_path / "run").save(tmp_path / "mine")
    shutil.rmtree(tmp_path / "mine" / "export")
    save_encoder(tmp_path / "mine" / "export", read_encoder(published))
    retriever = Retriever.load(tmp_path / "mine")
    assert [hits[0].question for hits in retriever.search(questions, k=1)] == questions


def test_models_are_found_by_name(published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QPR_MODELS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UserError, match="found none at mine, nor a model of this name"):
        Retriever.load("mine")
    with pytest.raises(UserError, match="the name of a model, got ''"):
        Retriever.load("")
    shutil.copytree(published, tmp_path / "cache" / "qpr_jax" / "models" / "mine")
    assert encoder_folder("mine").is_relative_to(tmp_path / "cache")
    monkeypatch.setenv("QPR_MODELS", str(published.parent))
    assert encoder_folder("mine") == encoder_folder("mine/") == published
    assert encoder_folder("../mine") != published  # a path, and no name
    retriever = Retriever.load("mine")
    assert len(retriever) == 0
    assert retriever.search(["how"]) == [[]]
    assert retriever.add(QUESTIONS[2:]) == [0, 1, 2, 3]
    assert retriever.search([QUESTIONS[3]], k=1)[0][0].id == 1
    retriever.save(tmp_path / "run")
    assert len(Retriever.load(tmp_path / "run")) == 4


@pytest.mark.parametrize("address", ["hf://mine", "hf://a/b/c", "hf://a/b@", "hf://a/b c"])
def test_other_addresses_of_the_hub_are_refused(address):
    with pytest.raises(UserError, match=r"expected hf://ORG/NAME, or hf://ORG/NAME@REVISION"):
        named.fetch_model(address)


def test_a_sentence_model_may_have_a_manifest_of_another_program(tmp_path):
    shutil.copytree(TINY, tmp_path / "t")
    (tmp_path / "t" / "manifest.json").write_text('{"name": "an app"}')
    assert read_encoder(tmp_path / "t").identity == read_encoder(TINY).identity
