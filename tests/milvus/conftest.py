"""One Milvus server for the whole run, with random ports; skipped where its package is not."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import time

import pytest

from qpr_jax.files import locked
from tests.cli.conftest import program_state, qpr
from tests.runs import write_encoder, write_reranker

__all__ = ["program_state", "qpr"]

ROOT = pathlib.Path(__file__).parent.parent.parent
PACKAGES = ("milvus", "pymilvus")


@pytest.fixture(scope="session")
def host(tmp_path_factory, request):
    """HOST:PORT of the server, which all workers of pytest-xdist share."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {missing[0]}: pip install 'qpr_jax[milvus,milvus-server]'")
    folder = tmp_path_factory.getbasetemp()
    parent = os.getpid()
    if hasattr(request.config, "workerinput"):
        folder, parent = folder.parent, os.getppid()
    address, log = folder / "milvus-address", folder / "milvus-log"
    with locked(folder / "milvus-lock", wait=True):
        if not address.exists():
            command = [sys.executable, "-m", "benchmarks.milvus_server", folder / "milvus", address]
            with log.open("w") as out:
                process = subprocess.Popen(
                    [*command, str(parent)],
                    cwd=ROOT,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            end = time.monotonic() + 240
            while not address.exists() and time.monotonic() < end and process.poll() is None:
                time.sleep(0.2)
            assert address.exists(), log.read_text()
            process.returncode = 0  # it ends after this process, which need not wait for it
    return address.read_text()


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A folder with an encoder and a re-ranker."""
    folder = tmp_path_factory.mktemp("milvus_run")
    write_encoder(folder)
    write_reranker(folder)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Files of runs go to the folder of the tests."""
    if "milvus" not in os.environ.get("XDG_CACHE_HOME", ""):
        cache = tmp_path_factory.getbasetemp() / "cache-of-milvus-tests"
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
