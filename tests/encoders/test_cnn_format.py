import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

from qpr_jax.encoders import hub
from qpr_jax.encoders.cnn_format import write_published
from qpr_jax.encoders.load import encoder_folder, read_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import write_manifest
from qpr_jax.retriever import Retriever
from tests.encoders.test_cnn_encoder import QUESTIONS, export
from tests.encoders.test_transformer_encoder import TINY


@pytest.fixture(params=[False, True])
def encoder(tmp_path, request):
    return export(tmp_path / "export", normalize=request.param)


@pytest.fixture
def published(tmp_path, encoder):
    folder = tmp_path / "models" / "mine"
    write_published(folder, encoder, "# mine\n")
    return folder


def test_what_is_published_is_the_encoder_that_was_trained(encoder, published):
    again = read_encoder(published)
    np.testing.assert_array_equal(again.encode(QUESTIONS), encoder.encode(QUESTIONS))
    assert again.identity == encoder.identity
    assert (again.settings, again.max_words) == (encoder.settings, encoder.max_words)
    assert {path.name for path in published.iterdir()} == {
        *("README.md", "manifest.json", "model.safetensors", "settings.json", "vocabulary.json")
    }


@pytest.mark.parametrize("name", ["model.safetensors", "vocabulary.json", "settings.json"])
def test_damage_is_told(published, name):
    data = bytearray((published / name).read_bytes())
    data[len(data) // 2] ^= 1
    (published / name).write_bytes(data)
    with pytest.raises(UserError, match=f"{name}: the bytes differ from their SHA-256"):
        read_encoder(published)


def test_weights_that_numpy_lacks_are_told(published):
    head = json.dumps({"embedding": {"dtype": "BF16", "shape": [1, 1], "data_offsets": [0, 2]}})
    data = len(head).to_bytes(8, "little") + head.encode() + bytes(2)
    (published / "model.safetensors").write_bytes(data)
    manifest = json.loads((published / "manifest.json").read_text())
    write_manifest(published, list(manifest["files"]), format=manifest["format"])
    with pytest.raises(UserError, match=r"model\.safetensors holds no arrays"):
        read_encoder(published)


def test_a_published_encoder_answers_for_an_index_of_the_trained_one(encoder, published, tmp_path):
    shutil.copytree(tmp_path / "export", tmp_path / "run" / "export")
    Retriever.build(QUESTIONS, run=tmp_path / "run").save(tmp_path / "mine")
    shutil.rmtree(tmp_path / "mine" / "export")
    read_encoder(published).save(tmp_path / "mine" / "export")
    retriever = Retriever.load(tmp_path / "mine")
    assert [hits[0].question for hits in retriever.search(QUESTIONS, k=1)] == QUESTIONS


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
    assert retriever.add(QUESTIONS[:4]) == [0, 1, 2, 3]
    assert retriever.search([QUESTIONS[3]], k=1)[0][0].id == 3
    retriever.save(tmp_path / "run")
    assert len(Retriever.load(tmp_path / "run")) == 4


def test_a_transformer_is_published_with_its_card(tmp_path):
    encoder = read_encoder(TINY)
    dataclasses.replace(encoder, files=encoder.files | {"README.md": b"# tiny"}).save(
        tmp_path / "t"
    )
    assert (tmp_path / "t" / "README.md").read_bytes() == b"# tiny"
    assert "README.md" in json.loads((tmp_path / "t" / "manifest.json").read_text())["files"]
    again = Retriever.load(tmp_path / "t")
    assert again.encoder.identity == encoder.identity
    for name in encoder.files:
        shutil.copytree(tmp_path / "t", tmp_path / "less", dirs_exist_ok=True)
        (tmp_path / "less" / name).unlink()
        with pytest.raises(UserError, match=r"found n|missing"):
            Retriever.load(tmp_path / "less")


@pytest.mark.parametrize("address", ["hf://mine", "hf://a/b/c", "hf://a/b@", "hf://a/b c"])
def test_other_addresses_of_the_hub_are_refused(address):
    with pytest.raises(UserError, match=r"expected hf://ORG/NAME, or hf://ORG/NAME@REVISION"):
        hub.fetched(address)


def test_a_manifest_of_others_does_not_matter_to_a_sentence_model(tmp_path):
    shutil.copytree(TINY, tmp_path / "t")
    (tmp_path / "t" / "manifest.json").write_text('{"name": "an app"}')
    assert read_encoder(tmp_path / "t").identity == read_encoder(TINY).identity


@pytest.mark.parametrize(
    ("file", "changed", "message"),
    [
        ("modules.json", {"path": ".."}, "expected folders of this folder for `path`s"),
        ("modules.json", {"path": "."}, "expected folders of this folder for `path`s"),
        ("config.json", {"hidden_size": "8"}, "`hidden_size`: expected a number above 0, got '8'"),
    ],
)
def test_odd_sentence_models_are_told(tmp_path, file, changed, message):
    shutil.copytree(TINY, tmp_path / "t")
    found = json.loads((tmp_path / "t" / file).read_text())
    (found[-1] if isinstance(found, list) else found).update(changed)
    (tmp_path / "t" / file).write_text(json.dumps(found))
    with pytest.raises(UserError, match=re.escape(message)):
        read_encoder(tmp_path / "t")
