"""Vectors in a .npy file: kills, other questions, other writers."""

import os

import numpy as np
import pytest

from qpr_jax.encoders.encoder import encode_to_file
from qpr_jax.errors import UserError
from qpr_jax.files import locked
from tests.refused import check_refused

QUESTIONS = [f"question {i}" for i in range(11)]


def encode(questions):
    return np.array([[len(q), int(q.split()[-1])] for q in questions], np.float32).reshape(-1, 2)


def write(path, questions=QUESTIONS, encode=encode, encoder="x"):
    options = {"dimension": 2, "encoder": encoder, "chunk": 3}
    return encode_to_file(path, questions, encode, **options)


def kill_after(calls):
    def encode_some(questions):
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise KeyboardInterrupt
        return encode(questions)

    return encode_some


def test_vectors_are_written(tmp_path):
    path = tmp_path / "deep" / "v.npy"
    for count in (0, 1, 3, 11, 11):
        assert write(path, QUESTIONS[:count]) == count
        np.testing.assert_array_equal(np.load(path, mmap_mode="r"), encode(QUESTIONS[:count]))
    assert sorted(os.listdir(path.parent)) == [".v.npy.lock", "v.npy"]
    said = "another process is writing it; wait for its end"
    with locked(path.parent / ".v.npy.lock"), pytest.raises(UserError, match=said):
        write(path)
    with pytest.raises(UserError, match=r"ends in \.npy"):
        write(tmp_path / "mine.csv")


def test_a_kill_leaves_no_file_and_the_same_call_goes_on(tmp_path):
    for calls in range(4):
        path, seen = tmp_path / f"{calls}.npy", []
        with pytest.raises(KeyboardInterrupt):
            write(path, encode=kill_after(calls))
        assert not path.exists()
        assert write(path, encode=lambda q, seen=seen: seen.extend(q) or encode(q)) == 11
        assert seen == QUESTIONS[3 * calls :]
        np.testing.assert_array_equal(np.load(path), encode(QUESTIONS))


def test_rows_are_on_disk_before_their_number(tmp_path, monkeypatch):
    fsync, synced = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file)) or fsync(file))
    write(tmp_path / "v.npy")
    rows = os.stat(tmp_path / "v.npy").st_ino
    assert [file.st_ino == rows for file in synced] == [*[True, False, False] * 4, True]


def test_what_a_kill_left_belongs_to_no_other_questions(tmp_path):
    path = tmp_path / "v.npy"
    with pytest.raises(KeyboardInterrupt):
        write(path, encode=kill_after(2))
    said = "started with other questions or another encoder; remove the file"
    others = (["question 5", *QUESTIONS[1:]], QUESTIONS[:2], QUESTIONS[:5])
    check_refused(lambda some: write(path, some), *((some, said) for some in others))
    check_refused(lambda encoder: write(path, encoder=encoder), ("y", said))
    part = tmp_path / ".v.npy.part"
    part.write_bytes(part.read_bytes()[:-1])  # cut: it starts again
    assert write(path) == 11
