import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from qpr_jax import Retriever
from tests.commands.conftest import QUESTIONS


@pytest.fixture
def serving(index):
    """A server of its own process: its address, and the process."""
    command = [sys.executable, "-m", "qpr_jax.command_line", "serve", str(index), "--port", "0"]
    environment = os.environ | {"QPR_TOKEN": "secret"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    told = process.stderr.readline()
    yield re.search(r"http://\S+:\d+", told)[0], process
    process.kill()
    process.communicate()


def test_a_stop_lets_what_was_asked_end(serving, index):
    address, process = serving
    bearer = {"Authorization": "Bearer secret"}
    answer = httpx.post(
        f"{address}/questions", json={"questions": ["new"], "ids": [77]}, headers=bearer
    )
    assert answer.json() == {"ids": [77]}
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM
    assert dict(Retriever.load(index).index) == QUESTIONS | {77: "new"}


def test_an_address_that_is_taken_is_told(serving, index):
    port = serving[0].rpartition(":")[2]
    command = [sys.executable, "-m", "qpr_jax.command_line", "serve", str(index), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot listen at 127.0.0.1:{port} (")
    assert done.stderr.count("\n") == 1


def test_a_token_file_that_holds_none_is_told(qpr, index, tmp_path):
    (tmp_path / "token").write_text("\n")
    assert (
        "expected a file with a token, got an empty one"
        in qpr("serve", index, "--token-file", tmp_path / "token")[2]
    )
