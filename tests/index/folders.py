"""Folders of indexes, and what a kill leaves of them."""

import contextlib
import json
import os
import pathlib
import shutil
import sqlite3

import faiss
import numpy as np

from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.folder import (
    new_build,
    new_files,
    read_index,
    seal,
    write_index,
    write_store,
)
from qpr_jax.index.question_index import QuestionIndex, build_vectors
from qpr_jax.index.recipe import Recipe

POINTS = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)


def encode(questions) -> np.ndarray:
    """A question is a point by its length and first character."""
    numbers = [7 * len(q) + ord(q[0]) if q else 0 for q in questions]
    return POINTS[np.array(numbers, int) % 3000].reshape(-1, 4)


def write(folder: pathlib.Path, questions: dict[int, str], **recipe) -> QuestionIndex:
    """An index of these questions by their ids."""
    folder.mkdir(exist_ok=True)
    build, requested = new_build(), Recipe(**recipe)
    with new_files(folder, build):
        entries = [StoredQuestion(*entry) for entry in questions.items()]
        store = write_store(folder, entries, build, 5000)
        vectors = build_vectors(encode, store, requested)
        index = QuestionIndex(vectors, store, requested, "abc")
        write_index(folder, index, build, "export")
    return index


def put(index: QuestionIndex, questions: dict[int, str]) -> None:
    index.put([*map(StoredQuestion, questions, questions.values())], encode(questions.values()))


def remove(index: QuestionIndex, *ids: int) -> None:
    index.remove(np.array(ids))


def file_of(folder: pathlib.Path, kind: str) -> pathlib.Path:
    (path,) = folder.glob(f"{kind}-*[!l]")  # but a journal
    return path


def many(count: int) -> dict[int, str]:
    return {3 * i: chr(97 + i % 26) * (i % 90) for i in range(count)}


def read(folder: pathlib.Path) -> dict[int, str]:
    return dict(read_index(folder)[0])


def reseal(folder: pathlib.Path, **changed) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(seal(json.loads(path.read_text()) | changed)))


class Killed(BaseException):
    pass


def kill_at(monkeypatch, folder: pathlib.Path, image: pathlib.Path, at: int) -> None:
    """Everything that reaches the disk, from the `at`-th time on, is the end of the process.

    image: gets the folder as it is then, before Python tidies up.
    """
    calls = 0

    def count(plain):
        def call(*arguments, **named):
            nonlocal calls
            calls += 1
            if calls > at:
                if not image.exists():
                    shutil.copytree(folder, image)
                raise Killed
            return plain(*arguments, **named)

        return call

    for name in ("fsync", "replace", "rename", "unlink"):
        monkeypatch.setattr(os, name, count(getattr(os, name)))
    monkeypatch.setattr(faiss, "write_index", count(faiss.write_index))

    class Connection(sqlite3.Connection):
        execute = count(sqlite3.Connection.execute)
        executemany = count(sqlite3.Connection.executemany)
        executescript = count(sqlite3.Connection.executescript)

    plain = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: plain(*a, **k, factory=Connection))


@contextlib.contextmanager
def unprivileged():
    """As a user whom the permissions of files hold."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
