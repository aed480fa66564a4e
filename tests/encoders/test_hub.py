"""Models of the hub, in a cache as the hub's library makes it: links to blobs named by hash."""

import fnmatch
import hashlib
import pathlib

import huggingface_hub
import pytest

from qpr_jax import Retriever, UserError
from qpr_jax.encoders.load import save_encoder
from tests.encoders.examples import cnn_encoder
from tests.runs import write_reranker


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """What the library is asked for, and the folder that it answers with."""
    served, snapshot, blobs = (tmp_path / name for name in ("served", "snapshot", "blobs"))
    save_encoder(served, cnn_encoder(), card="# mine\n")
    (tmp_path / "export").symlink_to(served)
    write_reranker(tmp_path)
    (served / "code.py").write_text("raise SystemExit('code of a model was run')")
    blobs.mkdir()

    def download(repo, *, revision, allow_patterns):
        for path in filter(pathlib.Path.is_file, served.rglob("*")):
            name, data = path.relative_to(served), path.read_bytes()
            if any(fnmatch.fnmatch(str(name), pattern) for pattern in allow_patterns):
                (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
                (snapshot / name).symlink_to(blobs / hash_of(data, name))
                (blobs / hash_of(data, name)).write_bytes(data)
        assert (repo, revision) == ("org/mine", None)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return snapshot


def hash_of(data, name):
    """Git's hash of a small file; of a large one its SHA-256."""
    if name.suffix == ".safetensors":
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def test_a_model_is_fetched_and_none_of_its_code(cached):
    retriever = Retriever.load("hf://org/mine")
    assert retriever.encoder.identity == cnn_encoder().identity
    retriever.add(["how can i learn python"])
    assert retriever.stages.words(None) == ["light", False]
    assert not (cached / "code.py").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "README.md", "reranker/manifest.json"])
def test_a_damaged_file_is_refused(cached, name, monkeypatch):
    Retriever.load("hf://org/mine")
    blob = (cached / name).resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(cached))
    with pytest.raises(UserError, match=f"{name}: the bytes differ from the hash"):
        Retriever.load("hf://org/mine")
    (cached / name).unlink()
    (cached / name).write_bytes(data)
    with pytest.raises(UserError, match=f"{name}: expected a link"):
        Retriever.load("hf://org/mine")


def test_a_model_that_cannot_be_fetched_is_named(monkeypatch):
    def fail(*_, **__):
        raise OSError("no network\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(UserError, match=r"hf://org/other: .* got OSError \(no network\)"):
        Retriever.load("hf://org/other")
