"""The command `qpr serve`, as processes of its own."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import click
import httpx
import pytest

from qpr_jax.cli.serve import host_name, host_names, listen, origin
from tests.refused import check_refused
from tests.runs import start_python
from tests.serving.conftest import BEARER, TOKEN
from tests.waiting import wait_until


@contextlib.contextmanager
def serving(folder, *options):
    """A server of its own process: its address, and the process."""
    command = ("-m", "qpr_jax.cli.main", "serve", folder, "--port", "0", *options)
    process = start_python(*command, QPR_TOKEN=TOKEN, GLIBC_TUNABLES=None)
    try:
        lines = iter(process.stderr.readline, "")
        address = next(filter(None, (re.search(r"http://\S+:\d+", line) for line in lines)))[0]
        for _ in range(9):  # a connection goes to any worker
            assert httpx.get(f"{address}/ready").json() == {"status": "ready"}
        yield address, process
    finally:
        process.terminate()  # and its workers
        process.communicate(timeout=60)


def test_a_server_answers_reloads_and_ends_an_answer_before_it_stops(mine):
    options = ["--allowed-host", "search.example", "--access-log", "--max-body", "99"]
    with serving(mine, *options, "--json") as (address, process):
        facts = {"folder": str(mine), "questions": 4, "url": address, "writing": True}
        assert json.loads(process.stdout.readline()) == facts
        for host, status in [("search.example", 200), ("localhost", 200), ("other.example", 400)]:
            assert httpx.get(f"{address}/health", headers={"Host": host}).status_code == status
        long, claimed = {"queries": ["x" * 90]}, {"X-Forwarded-For": "9.9.9.9"}
        refused = httpx.post(f"{address}/search", json=long, headers=claimed)
        assert refused.status_code == 413
        process.send_signal(signal.SIGHUP)
        reloaded = 'qpr_reloads_total{result="ok"} 1.0'
        wait_until(lambda: reloaded in httpx.get(f"{address}/metrics").text)
        # An answer that has begun, and ends after the signal.
        host, port = address.removeprefix("http://").split(":")
        body = b'{"questions": ["learn python"]}'
        head = "POST /encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(head.encode())
            assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
            process.terminate()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            connection.sendall(body)
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert process.wait(30) == -signal.SIGTERM
        lines = process.stdout.read().splitlines()
    pattern = r'[\d-]+ [\d:,]+ 127\.0\.0\.1:\d+ "POST /search HTTP/1\.1" 413 .+'
    assert [line for line in lines if re.fullmatch(pattern, line)]


def test_two_workers_share_the_index_and_the_metrics(mine):
    with serving(mine, "--workers", "2") as (address, process):
        # A connection belongs to one worker, so that each request here may go to either.
        new = {"questions": ["new"], "ids": [77]}
        assert httpx.post(f"{address}/questions", json=new, headers=BEARER).status_code == 200
        for _ in range(20):
            assert httpx.get(f"{address}/questions/77").json()["question"] == "new"
            answer = httpx.post(f"{address}/search", json={"queries": ["new"], "k": 5})
            assert "new" in answer.text
        counted = re.search(
            r'qpr_requests_total\{handler="/search",method="POST",status="200"\} (\S+)',
            httpx.get(f"{address}/metrics").text,
        )
        assert float(counted[1]) == 20
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_with_a_server_that_was_killed(mine):
    with serving(mine, "--workers", "2") as (address, process):
        workers = workers_of(process)
        process.kill()
        wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in workers))
        assert len(workers) == 2
        assert not answers(address)


def workers_of(process):
    """The processes that a server has started, but for the tracker of their resources."""
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    commands = {int(pid): pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    return {pid for pid, command in commands.items() if b"spawn_main" in command}


def answers(address):
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{address}/ready", timeout=5).status_code == 200


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_dead_and_silent_workers_are_replaced(mine):
    with serving(mine, "--workers", "2") as (address, process):
        before = workers_of(process)
        assert len(before) == 2
        for pid, number in zip(before, (signal.SIGSTOP, signal.SIGKILL), strict=True):
            os.kill(pid, number)
        began = time.monotonic()
        wait_until(lambda: not before & workers_of(process))
        assert time.monotonic() - began < 15
        wait_until(lambda: answers(address))


def test_an_address_that_cannot_be_listened_at():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check_refused(listen, ("127.0.0.1", port, f"cannot listen at 127.0.0.1:{port}"))
    wrong = ("", "no.such.host.invalid")
    check_refused(listen, *((host, 0, "expected an address") for host in wrong))


def test_hosts_and_origins():
    for name in ("", "a:80", "http://a", "*.a"):
        with pytest.raises(click.BadParameter, match="expected a name or an address without port"):
            host_name(name)
    assert [*map(host_name, ["::1", "[2001:DB8::1]"])] == ["[::1]", "[2001:db8::1]"]
    assert host_names("::", ["[::1]"]) == ["[::1]"]
    assert host_names("0.0.0.0", []) == []
    assert host_names("2001:db8::2", ["10.0.0.1", "*"]) == ["[2001:db8::2]", "10.0.0.1", "*"]
    for text in ("*", "shop.example", "https://a/b"):
        with pytest.raises(click.BadParameter, match="expected an origin"):
            origin(text)
    for text in ("https://shop.example", "http://localhost:3000", "http://[::1]:80"):
        assert origin(text) == text
