import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from qpr_jax import Retriever
from qpr_jax.cli.serve import host_names, origin_names
from qpr_jax.errors import UserError
from tests.cli.conftest import QUESTIONS
from tests.runs import write_reranker
from tests.serving.conftest import wait_until


@pytest.fixture
def serving(index):
    """A server of its own process, with a re-ranker: its address, and the process."""
    write_reranker(index)
    command = [sys.executable, "-m", "qpr_jax.cli.main", "serve", str(index), "--port", "0"]
    command += ["--allowed-host", "search.example", "--json"]
    command += ["--access-log", str(index.parent / "access.jsonl"), "--max-k", "7"]
    environment = os.environ | {"QPR_TOKEN": "secret"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, env=environment)
    try:
        lines = iter(process.stderr.readline, "")
        address = next(filter(None, (re.search(r"http://\S+:\d+", line) for line in lines)))
        yield address[0], process
    finally:
        process.kill()
        process.communicate()


def test_a_server_answers_allowed_hosts_and_stops_after_a_write(serving, index):
    address, process = serving
    facts = {"folder": str(index), "questions": 4, "url": address, "writing": True}
    assert json.loads(process.stdout.readline()) == facts
    _check_allowed_hosts(address)
    found = httpx.post(f"{address}/search", json={"queries": ["rice"], "k": 1}).json()["results"]
    assert found[0][0]["score"] is not None
    bearer = {"Authorization": "Bearer secret"}
    answer = httpx.post(
        f"{address}/questions", json={"questions": ["new"], "ids": [77]}, headers=bearer
    )
    assert answer.json() == {"ids": [77]}
    Retriever.load(index).add(["from elsewhere"], [88])
    assert httpx.get(f"{address}/questions/88").status_code == 404
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: httpx.get(f"{address}/questions/88").status_code == 200)
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM
    assert dict(Retriever.load(index).index) == QUESTIONS | {77: "new", 88: "from elsewhere"}
    logged = (index.parent / "access.jsonl").read_text().splitlines()
    assert [json.loads(line)["path"] for line in logged][3:5] == ["/search", "/questions"]


def test_an_address_that_is_taken(qpr, index):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, err = qpr("serve", index, "--port", port)
    assert status == 1
    assert err.startswith(f"error: cannot listen at 127.0.0.1:{port} (")
    assert err.count("\n") == 1


def _check_allowed_hosts(address):
    hosts = ["search.example", "localhost", "other.example"]
    answers = [httpx.get(f"{address}/health", headers={"Host": host}) for host in hosts]
    assert [answer.status_code for answer in answers] == [200, 200, 400]
    assert "got other.example; start it with " in answers[2].json()["error"]


def test_a_stop_lets_an_answer_end(serving):
    address, process = serving
    host, port = address.removeprefix("http://").split(":")
    body = b'{"questions": ["learn python"]}'
    head = "POST /encode HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
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
def test_a_token_that_is_none(qpr, index, tmp_path, monkeypatch, token):
    (tmp_path / "token").write_text(token)
    said = "expected a token of printable ASCII without blanks"
    assert said in qpr("serve", index, "--token-file", tmp_path / "token")[2]
    monkeypatch.setenv("QPR_TOKEN", token)
    assert f"error: $QPR_TOKEN: {said}" in qpr("serve", index)[2]


@pytest.mark.parametrize("origin", ["*", "shop.example", "https://a/b", "https://", "null"])
def test_an_origin_that_is_none(origin):
    with pytest.raises(UserError, match=r"expected an origin, as https://shop\.example, got"):
        origin_names([origin])
    names = ["https://shop.example", "http://localhost:3000", "http://[::1]:80"]
    assert origin_names(names) == names


def test_an_access_log_that_cannot_be_written(qpr, index, tmp_path):
    status, _, err = qpr("serve", index, "--access-log", tmp_path / "none" / "log")
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith("error: `--access-log`: expected a file that can be written, got ")


@pytest.mark.parametrize("host", ["", "no.such.host.invalid"])
def test_a_host_that_is_none(qpr, index, host):
    status, _, err = qpr("serve", index, "--host", host)
    assert status == 1
    assert re.match(r"error: \S*host`?: expected an address", err)


@pytest.mark.parametrize("name", ["", "a:80", "http://a", "a b", "*.a", "a,b", "[a", "1.1.1.1:8"])
def test_an_allowed_host_that_is_none(name):
    with pytest.raises(UserError, match="expected a name or an address without port, got"):
        host_names("127.0.0.1", [name])


@pytest.mark.parametrize(
    ("host", "allowed", "names"),
    [
        ("127.0.0.1", [], ["127.0.0.1"]),
        ("0.0.0.0", ["a.example"], ["a.example"]),
        ("::", ["::1", "[2001:DB8::1]"], ["[::1]", "[2001:db8::1]"]),
        ("2001:db8::2", ["10.0.0.1", "*"], ["[2001:db8::2]", "10.0.0.1", "*"]),
    ],
)
def testhost_names(host, allowed, names):
    assert host_names(host, allowed) == names
