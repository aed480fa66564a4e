"""`qpr review`: a process of its own, killed and stopped, loses no verdict."""

import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from tests.serving.test_review import write_found


@pytest.fixture
def start(tmp_path):
    """() -> (client, process) of a review of 40 pairs."""
    write_found(tmp_path / "pairs.csv")
    command = [sys.executable, "-m", "qpr_jax.cli.main", "review", str(tmp_path / "pairs.csv")]
    command += ["--port", "0", "--precision", "0.6"]
    started = []

    def call(*more):
        arguments = [*command, *more]
        process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=os.environ)
        url = re.compile(r"(http://\S+:\d+)/\?token=(\S+)")
        address = next(filter(None, map(url.search, iter(process.stderr.readline, ""))))
        headers = {"Authorization": f"Bearer {address[2]}"}
        started.append((httpx.Client(base_url=address[1], headers=headers), process))
        return started[-1]

    yield call
    for client, process in started:
        client.close()
        process.kill()
        process.communicate()


def judge(client, verdict):
    key = client.get("/review").json()["pair"]["key"]
    assert client.post("/verdict", json={"pair": key, "verdict": verdict}).status_code == 200


def test_a_kill_loses_no_verdict_and_ctrl_c_says_what_they_imply(start, tmp_path):
    client, process = start()
    for verdict in ("yes", "no", "yes"):
        judge(client, verdict)
    process.kill()
    process.wait(30)
    text = (tmp_path / "verdicts.csv").read_text()
    assert len(re.findall(r",[01],0\.\d+,[\d.]+$", text, re.MULTILINE)) == 3
    client, process = start()
    assert client.get("/review").json()["yes"] == 2
    judge(client, "yes")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    said, stopped = stderr.splitlines()
    assert "4 verdicts: " in said
    assert re.search(
        r"`--threshold 0\.\d+` of `qpr duplicates` accepts \d+ pairs at a precision of ", said
    )
    assert stopped == "stopped: every verdict given is on disk"


def test_other_machines_need_an_allowed_name_and_the_token(start):
    client, _ = start("--host", "0.0.0.0", "--allowed-host", "127.0.0.2")
    assert client.base_url.host == "127.0.0.2"
    assert client.get("/review").json()["pairs"] == 40
    assert client.get("/review", headers={"Authorization": ""}).status_code == 401
    assert client.get("/review", headers={"Host": "evil.example"}).status_code == 400
