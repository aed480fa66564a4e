import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from qpr_jax import Retriever
from tests.cli.conftest import QUESTIONS


@pytest.fixture
def serving(index):
    """A server of its own process: its address, and the process."""
    command = [sys.executable, "-m", "qpr_jax.cli.main", "serve", str(index), "--port", "0"]
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
    command = [sys.executable, "-m", "qpr_jax.cli.main", "serve", str(index), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot listen at 127.0.0.1:{port} (")
    assert done.stderr.count("\n") == 1


def test_a_stop_lets_an_answer_end(serving):
    address, process = serving
    host, port = address.removeprefix("http://").split(":")
    body = b'{"questions": ["learn python"]}'
    head = f"POST /encode HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"  # it is being answered
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        connection.sendall(body)
        answer = b"".join(iter(lambda: connection.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert process.wait(30) == -signal.SIGTERM


@pytest.mark.parametrize("token", ["\n", "two words", "caf\u00e9", "\x07"])
def test_a_token_that_is_none_is_told(qpr, index, tmp_path, monkeypatch, token):
    (tmp_path / "token").write_text(token)
    said = "expected a token of printable ASCII without blanks"
    assert said in qpr("serve", index, "--token-file", tmp_path / "token")[2]
    monkeypatch.setenv("QPR_TOKEN", token)
    assert f"error: $QPR_TOKEN: {said}" in qpr("serve", index)[2]


@pytest.mark.parametrize("host", ["", "no.such.host.invalid"])
def test_a_host_that_is_none_is_told(qpr, index, host):
    status, _, told = qpr("serve", index, "--host", host)
    assert status == 1
    assert told.startswith("error: `--host`: expected an address")
