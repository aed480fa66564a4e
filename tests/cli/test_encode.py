"""`qpr encode` as a user meets it."""

import os

import numpy as np

from qpr_jax import Retriever, files
from qpr_jax.costs import rows
from qpr_jax.index import vectors_file
from tests.cli.conftest import QUESTIONS


def test_encoded_to_a_file(qpr, run, index, monkeypatch):
    monkeypatch.setattr(vectors_file, "CHUNK", 3)
    status, _, stderr = qpr("encode", run, "questions.jsonl", "--out", "deep/vectors.npy")
    assert status == 0, stderr
    vectors = np.load("deep/vectors.npy", mmap_mode="r")
    expected = Retriever.load(index).encode(list(QUESTIONS.values()))
    np.testing.assert_array_equal(vectors, expected)
    assert sorted(os.listdir("deep")) == [".vectors.npy.lock", "vectors.npy"]
    assert qpr("encode", run, "--out", "none.npy")[0] == 0
    assert np.load("none.npy").shape == (0, 6)


def test_encoding_goes_on_where_it_was_killed(qpr, run, monkeypatch):
    monkeypatch.setattr(vectors_file, "CHUNK", 3)
    monkeypatch.setattr(rows, "SAMPLE", 1)
    given = [f"question {i}\n".encode() for i in range(11)]
    bad = b"".join(given[:8]) + b"\xff\n"
    status, _, stderr = qpr("encode", run, "--out", "v.npy", given=bad)
    assert (status, os.path.exists("v.npy")) == (1, False)
    assert "standard input, line 9: expected UTF-8" in stderr
    others = b"".join([b"another\n", *given[1:]])
    with files.locked(".v.npy.lock"):
        status, _, stderr = qpr("encode", run, "--out", "v.npy", given=others)
        assert (status, "another process is writing it" in stderr) == (1, True)
    status, _, stderr = qpr("encode", run, "--out", "v.npy", given=others)
    assert status == 1
    assert "started with other questions; remove the file to start again" in stderr
    status, _, stderr = qpr("encode", run, "--out", "v.npy", given=b"".join(given[:2]))
    assert (status, "started with other questions" in stderr) == (1, True)
    calls = []
    plain = vectors_file._header
    monkeypatch.setattr(vectors_file, "_header", lambda *a: calls.append(a) or plain(*a))
    status, _, stderr = qpr("encode", run, "--out", "v.npy", given=b"".join(given))
    assert status == 0
    assert "resuming after 6 questions" in stderr
    assert calls == [(11, 6)]
    questions = [line.decode().strip() for line in given]
    qpr("index", "mine", "--run", run, given=b"".join(given))
    np.testing.assert_array_equal(np.load("v.npy"), Retriever.load("mine").encode(questions))
