"""One Milvus server for the whole run, skipped where the package is missing."""

import os
import subprocess
import sys
import time

import pytest


@pytest.fixture(scope="session")
def host(build_once):
    """HOST:PORT of the server, which all workers of pytest-xdist share."""
    pytest.importorskip("milvus")
    pytest.importorskip("pymilvus")
    return (build_once("milvus", start) / "address").read_text()


def start(folder):
    """Start a server that ends after pytest, and wait for its address."""
    parent = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    command = ["-m", "tests.milvus.server", folder / "data", folder / "address", str(parent)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)
    while process.poll() is None and not (folder / "address").exists():
        time.sleep(0.2)
    assert (folder / "address").exists(), (folder / "log").read_text()
    process.returncode = 0  # else Python warns of a process that still runs
