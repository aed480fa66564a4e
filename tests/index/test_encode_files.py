"""Vectors in a .npy file: kills, other questions, other writers."""

import os

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.files import locked
from qpr_jax.index.encode_files import encode_to_file

QUESTIONS = [f"question {i}" for i in range(11)]


def encode(questions):
    return np.array([[len(q), int(q.split()[-1])] for q in questions], np.float32).reshape(-1, 2)


def write(path, questions=QUESTIONS, encode=encode, encoder="x", log=len):
    how = {"dimension": 2, "encoder": encoder, "log": log, "chunk": 3}
    return encode_to_file(path, questions, encode, **how)


def kill_after(calls):
    def encode_some(questions):
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise KeyboardInterrupt
        return encode(questions)

    return encode_some


@pytest.mark.parametrize("count", [0, 1, 3, 11])
def test_vectors_are_written(tmp_path, count):
    path = tmp_path / "deep" / "v.npy"
    for _ in range(2):
        assert write(path, QUESTIONS[:count]) == count
        np.testing.assert_array_equal(np.load(path, mmap_mode="r"), encode(QUESTIONS[:count]))
    assert sorted(os.listdir(path.parent)) == [".v.npy.lock", "v.npy"]


@pytest.mark.parametrize("calls", range(4))
def test_a_kill_leaves_no_file_and_the_same_call_goes_on(tmp_path, calls):
    path, lines = tmp_path / "v.npy", []
    with pytest.raises(KeyboardInterrupt):
        write(path, encode=kill_after(calls))
    assert not path.exists()
    seen = []
    assert write(path, encode=lambda q: seen.extend(q) or encode(q), log=lines.append) == 11
    assert seen == QUESTIONS[3 * calls :]
    assert lines == ([f"{path}: resuming after {3 * calls} questions"] if calls else [])
    np.testing.assert_array_equal(np.load(path), encode(QUESTIONS))


def test_what_a_kill_left_belongs_to_no_other_questions(tmp_path):
    path = tmp_path / "v.npy"
    with pytest.raises(KeyboardInterrupt):
        write(path, encode=kill_after(2))
    for other in (["question 5", *QUESTIONS[1:]], QUESTIONS[:2], QUESTIONS[:5]):
        with pytest.raises(UserError, match="started with other questions; remove the file"):
            write(path, other)
    with pytest.raises(UserError, match="started with another encoder"):
        write(path, encoder="y")
    part = tmp_path / ".v.npy.part"
    part.write_bytes(part.read_bytes()[:-1])  # cut: it starts again
    assert write(path) == 11


def test_other_files_and_other_writers(tmp_path):
    path = tmp_path / "v.npy"
    said = "another process is writing it; wait for its end"
    with locked(tmp_path / ".v.npy.lock"), pytest.raises(UserError, match=said):
        write(path)
    path.write_text("mine")
    with pytest.raises(UserError, match=r"expected a \.npy file to replace"):
        write(path)
    assert path.read_text() == "mine"
