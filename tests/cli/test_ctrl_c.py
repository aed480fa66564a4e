"""Ctrl-C, a real SIGINT: status 130, and one line whose promise is true; a kill of `review`."""

import fcntl
import json
import re
import shutil
import signal
import struct
import termios
import time

import httpx
import numpy as np
import pytest

from qpr_jax import Retriever, read_encoder
from tests.duplicates.test_review import write_found
from tests.tables import read_table

NOTHING = "stopped: nothing was changed"
MANY = "".join(f"how can i learn thing {i}\n" for i in range(2000))


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
    process = start("index", index, "--encoder", run)
    feed(process)
    assert interrupt(process) == f"stopped: {index} keeps its old index or has the new one"
    assert len(Retriever.load(index)) == 4


def test_what_was_not_begun_is_not_spoken_of(start):
    for words in ("index new", "duplicates --out found", "encode minilm --out v.npy"):
        process = start(*words.split())
        feed(process)
        assert interrupt(process) == NOTHING, words


def test_what_add_has_printed_is_kept(start, done, run, tmp_path):
    done("index", "mine", "--encoder", run, given=b"how to cook rice\n")
    process = start("add", "mine")
    feed(process)
    first = json.loads(process.stdout.readline())
    line = interrupt(process)
    assert line == "stopped: the lines printed are in mine; the others may not be"
    (stored,) = Retriever.load(tmp_path / "mine").store.get([first["id"]])
    assert stored.text == first["question"]


def test_the_same_command_resumes_encode(start, done, run, tmp_path):
    process = start("encode", run, "--out", "v.npy")
    feed(process)
    assert interrupt(process) in ("stopped: the same command resumes v.npy", NOTHING)
    assert not (tmp_path / "v.npy").exists()
    done("encode", run, "--out", "v.npy", given=MANY.encode())
    expected = read_encoder(run).encode(MANY.splitlines())
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)


@pytest.mark.parametrize("module", ["click", "jax"])
def test_while_modules_are_imported(start, module):
    """`train` starts itself again between them; modules are printed as they come."""
    process = start("train", "run", "--config", "synthetic_sdml:smoke", PYTHONPROFILEIMPORTTIME="1")
    for line in process.stderr:
        if line.endswith(f" {module}\n"):
            break
    kept = ("nothing was changed", "the same command, without --overwrite, resumes run")
    assert interrupt(process) in {f"stopped: {what}" for what in kept}


def review(start, pairs, *more):
    """Start a review of pairs; returns a client and the process."""
    process = start("review", pairs, "--port", "0", "--precision", "0.6", *more)
    url = re.compile(r"(http://\S+:\d+)/\?token=(\S+)")
    address = next(filter(None, map(url.search, iter(process.stderr.readline, ""))))
    headers = {"Authorization": f"Bearer {address[2]}"}
    return httpx.Client(base_url=address[1], headers=headers), process


def judge(client, label):
    key = client.get("/review").json()["pair"]["key"]
    assert client.post("/label", json={"pair": key, "label": label}).status_code == 200


def test_a_kill_loses_no_label_and_ctrl_c_says_what_they_imply(start, tmp_path):
    write_found(tmp_path / "pairs.csv")
    client, process = review(start, "pairs.csv", "--host", "0.0.0.0", "--allowed-host", "127.0.0.2")
    assert client.base_url.host == "127.0.0.2"  # for other machines
    with client:
        for label in ("yes", "no", "yes"):
            judge(client, label)
        process.kill()
        process.wait(30)
    text = (tmp_path / "labels.csv").read_text()
    assert len(re.findall(r",[01],0\.\d+,[\d.]+$", text, re.MULTILINE)) == 3
    info = {"files": ["pairs.csv", "groups.csv"], "encoder": "open_student"}
    (tmp_path / "info.json").write_text(json.dumps(info))
    client, process = review(start, ".")  # the output folder of `qpr duplicates`
    with client:
        assert client.get("/review").json()["yes"] == 2
        for _ in range(17):
            judge(client, "yes")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    *_, said, step, stopped = stderr.splitlines()
    assert "share right (90 % interval)" in stderr
    assert "20 labels: " in said
    command = "qpr calibrate open_student labels.csv --out calibrated"
    assert f"next: `{command}` fits" in step
    kept = r"`--threshold 0\.\d+` of `qpr duplicates` keeps \d+ of \d+ pairs and about \d+% of "
    assert re.search(kept, said)
    assert stopped == "stopped: every label given is on disk"


def test_first_hits_of_queries_are_judged(start, qpr, index, tmp_path):
    (tmp_path / "q.csv").write_text("query,day\nlearn python fast,1\ncook some rice,2\n")
    client, process = review(start, index, "--queries", "q.csv")
    with client:
        for label in ("yes", "no"):
            judge(client, label)
        described = client.get("/review").json()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert (described["pair"], described["estimate"]["precision"]) == (None, 0.5)
    assert "2 labels: the share of right first hits is 0.500 (90 % interval 0." in stderr
    assert "; a query without an answer counts as wrong)" in stderr
    assert len(read_table(tmp_path / "q_first_hits" / "labels.csv")) == 2
    shutil.copytree(index, tmp_path / "other")
    said = qpr("review", "other", "--queries", "q.csv")[2]
    assert f"q_first_hits: has first hits of another index, {index}; remove it" in said
