"""Models of the hub."""

import fnmatch
import pathlib
import shutil

import huggingface_hub
import pytest

from qpr_jax import Retriever, UserError
from qpr_jax.encoders.load import save_encoder
from tests.encoders.examples import cnn_encoder
from tests.runs import write_reranker


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """What the library is asked for, and the folder that it answers with."""
    served, snapshot = tmp_path / "served", tmp_path / "snapshot"
    save_encoder(served, cnn_encoder(), card="# mine\n")
    (tmp_path / "export").symlink_to(served)
    write_reranker(tmp_path)
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
    return snapshot


def test_a_model_is_fetched_and_none_of_its_code(cached):
    retriever = Retriever.load("hf://org/mine")
    assert retriever.encoder.identity == cnn_encoder().identity
    retriever.add(["how can i learn python"])
    assert retriever.stages.words(None) == ["light", False]
    assert not (cached / "code.py").exists()


def test_a_model_that_cannot_be_fetched_is_named(monkeypatch):
    def fail(*_, **__):
        raise OSError("no network\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(UserError, match=r"hf://org/other: .* got OSError \(no network\)"):
        Retriever.load("hf://org/other")
