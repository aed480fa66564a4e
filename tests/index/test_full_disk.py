"""A file that cannot be written whole: one line, and the index stays as it was."""

import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from qpr_jax.index.folder import FolderStore
from qpr_jax.retriever import Recipe, Retriever
from tests.index.folders import contents, make, some
from tests.runs import WORDS, write_encoder


def build(folder, words, factory):
    """Save an index of questions of so many words."""
    write_encoder(folder / "run")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, words)) for _ in range(1000)]
    recipe = Recipe(factory, vectors="float16")
    Retriever.build(texts, run=folder / "run", recipe=recipe).save(folder / "mine")
    return folder / "mine"


@pytest.mark.parametrize("file", ["questions-", "codes-"])
def test_compact_names_the_file_and_leaves_the_old_index(tmp_path, file):
    folder = build(tmp_path, *((9, "Flat") if file == "questions-" else (1, "HNSW64")))
    sizes = {path.name: path.stat().st_size for path in (folder / "index").iterdir()}
    largest = max(sizes, key=sizes.__getitem__)
    assert largest.startswith(file)
    limit = sizes[largest] - 1
    code = "import sys; from qpr_jax.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, "compact", folder],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1, done.stderr
    assert last.startswith("error: ")
    assert file in last
    assert "fewer questions" not in last
    assert {path.name: path.stat().st_size for path in (folder / "index").iterdir()} == sizes
    assert len(Retriever.load(folder))


def test_a_full_disk_leaves_the_old_index_and_names_the_file(tmp_path, monkeypatch):
    store = make(tmp_path, some(5))
    before, plain = contents(store), os.fsync
    for kind in ("vectors", "questions", "codes", "manifest"):

        def full(descriptor, kind=kind):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if kind in os.path.basename(path):
                raise OSError(28, "No space left on device")
            plain(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match=f"No space left on device: '.*{tmp_path.name}"):
                make(tmp_path, some(9), factory="HNSW4")
        assert contents(FolderStore(tmp_path)) == contents(store) == before
        assert len([*tmp_path.glob("[!.]*")]) == 4
