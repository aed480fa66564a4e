"""Folders of indexes, and what a kill leaves of them."""

import contextlib
import json
import os
import pathlib
import shutil
import sqlite3

import faiss
import numpy as np

from qpr_jax.ids import Id
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


def stored(questions: dict[Id, str]) -> list[StoredQuestion]:
    """These questions by their ids; those whose id is a string have a payload."""
    return [
        StoredQuestion(value, text, {"of": value} if isinstance(value, str) else None)
        for value, text in questions.items()
    ]


def write(folder: pathlib.Path, questions: dict[Id, str], **recipe) -> QuestionIndex:
    """An index of `stored` questions."""
    folder.mkdir(exist_ok=True)
    build, requested = new_build(), Recipe(**recipe)
    with new_files(folder, build):
        store = write_store(folder, stored(questions), build, 5000)
        vectors = build_vectors(encode, store, requested)
        index = QuestionIndex(vectors, store, requested, "abc")
        write_index(folder, index, build, "export")
    return index


def put(index: QuestionIndex, questions: dict[Id, str]) -> None:
    index.put(stored(questions), encode(questions.values()))


def remove(index: QuestionIndex, *ids: Id) -> None:
    index.remove(ids)


def file_of(folder: pathlib.Path, kind: str) -> pathlib.Path:
    names = {"vectors": "vectors-*.faiss", "sums": "vectors-*.npy"}
    (path,) = folder.glob(names.get(kind, f"{kind}-*[!l]"))  # but a journal
    return path


def many(count: int) -> dict[Id, str]:
    return {3 * i: chr(97 + i % 26) * (i % 90) for i in range(count)}


def mixed(count: int) -> dict[Id, str]:
    """As `many`, but two of three ids are strings."""
    return {i if i % 9 == 0 else f"{'q-' * (i % 9 - 3)}{i}": q for i, q in many(count).items()}


def read(folder: pathlib.Path) -> dict[Id, str]:
    """The questions of an index by their ids; their payload must be as of `stored`."""
    questions = [*read_index(folder)[0].store]
    found = {question.id: question.question for question in questions}
    assert questions == stored(found)
    return found


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
