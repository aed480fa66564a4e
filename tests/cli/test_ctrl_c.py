"""Ctrl-C, a real SIGINT: one line that says what is kept, status 130, and what it says is true."""

import fcntl
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import termios
import time

import numpy as np
import pytest

from qpr_jax import Retriever
from tests.xla import QUICK_XLA

ROOT = str(pathlib.Path(__file__).parent.parent.parent)  # fixtures change the folder
MANY = "".join(f"how can i learn thing {i}\n" for i in range(2000))


@pytest.fixture
def start(tmp_path):
    """(arguments) -> the program, running; its input is a pipe."""
    started = []
    environment = os.environ | {"PYTHONPATH": ROOT, "XLA_FLAGS": QUICK_XLA}
    environment.pop("GLIBC_TUNABLES", None)

    def call(*arguments, **variables):
        process = subprocess.Popen(
            [sys.executable, "-m", "qpr_jax.cli.main", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment | variables,
            cwd=tmp_path,
            text=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()


def interrupt(process):
    """The line that says what is kept."""
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    lines = stderr.splitlines()
    assert [line for line in lines if "stopped" in line] == lines[-1:]
    return lines[-1]


def feed(process):
    """Write questions, and wait until the program has begun to read; the pipe stays open."""
    process.stdin.write(MANY)
    process.stdin.flush()
    unread = len(MANY)
    while unread == len(MANY) and process.poll() is None:
        time.sleep(0.01)
        unread = struct.unpack("i", fcntl.ioctl(process.stdin, termios.FIONREAD, b"\0" * 4))[0]


def test_index_keeps_the_index_before(start, index, run):
    process = start("index", index, "--run", run)
    feed(process)
    assert interrupt(process) == f"stopped: {index} keeps its old index or has the new one"
    assert len(Retriever.load(index)) == 4


def test_what_add_has_printed_is_kept(start, qpr, run, tmp_path):
    assert qpr("index", "mine", "--run", run, given=b"how to cook rice\n")[0] == 0
    process = start("add", "mine")
    feed(process)
    first = json.loads(process.stdout.readline())
    line = interrupt(process)
    assert line == "stopped: the lines printed are in mine; the others may not be"
    (stored,) = Retriever.load(tmp_path / "mine").store.get([first["id"]])
    assert stored.text == first["question"]


def test_the_same_command_resumes_encode(start, qpr, run, tmp_path):
    process = start("encode", run, "--out", "v.npy")
    feed(process)
    assert interrupt(process) == "stopped: the same command resumes v.npy"
    assert not (tmp_path / "v.npy").exists()
    assert qpr("encode", run, "--out", "v.npy", given=MANY.encode())[0] == 0
    assert len(np.load(tmp_path / "v.npy")) == 2000


@pytest.mark.slow
def test_train_saves_and_the_same_command_resumes(start, tmp_path):
    changes = ("--set", "max_steps=100000", "--set", "max_epochs=100000")
    process = start("train", "run", "--config", "synthetic_sdml:smoke", *changes)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
        time.sleep(0.01)
    line = interrupt(process)
    assert line.endswith("saved; the same command resumes")
    assert any((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize("module", ["click", "jax"])
def test_while_modules_are_imported(start, module):
    """`train` starts itself again between them; modules are printed as they come."""
    process = start("train", "run", "--config", "synthetic_sdml:smoke", PYTHONPROFILEIMPORTTIME="1")
    for line in process.stderr:
        if line.endswith(f" {module}\n"):
            break
    kept = ("nothing was changed", "the same command, without --overwrite, resumes run")
    assert interrupt(process) in {f"stopped: {what}" for what in kept}
