"""Folders of indexes, and what a kill leaves of them."""

import os
import pathlib
import shutil
import sqlite3

from qpr_jax.index.folder import FolderStore
from qpr_jax.index.protocol import IndexConfig, Question
from qpr_jax.pair_model.hits import text_of
from tests.kills import Killed
from tests.store_contract import DIMENSION, encode


def some(count: int, first: int = 0) -> list[Question]:
    """Questions with all kinds of ids, every third with a payload."""
    return [
        Question(i if i % 2 else f"q-{i}", f"question {i}", None if i % 3 else {"of": f"of {i}"})
        for i in range(first, first + count)
    ]


def make(folder: pathlib.Path | None, questions: list[Question], **index_config) -> FolderStore:
    config = IndexConfig(**index_config)
    facts = {"encoder": "e" * 64, "dimension": DIMENSION}
    return FolderStore.create(folder, questions, encode, config, **facts)


def contents(store: FolderStore) -> dict:
    """The questions by their ids; each must be found by its own text."""
    questions = [*store.questions()]
    assert len(questions) == len(store)
    for number in range(store.index_config.texts if questions else 0):
        texts = [q.texts(store.index_config.text_columns)[number] for q in questions]
        found = store.search(encode(texts), len(questions))
        assert [text_of(hits[0]) for hits in found] == texts
        assert {tuple(sorted(str(hit.id) for hit in hits)) for hits in found} == {
            tuple(sorted(str(question.id) for question in questions))
        }
    assert store.get([question.id for question in questions]) == questions
    return {question.id: question for question in questions}


def kill_at(monkeypatch, folder: pathlib.Path, image: pathlib.Path, at: int) -> None:
    """Whatever reaches the disk, from the `at`-th time on, is the end of the process.

    image: gets the folder as it is then, before Python tidies up.
    """
    calls = 0

    def counted(plain):
        def call(*arguments, **named):
            nonlocal calls
            calls += 1
            if calls > at:
                if not image.exists():
                    shutil.copytree(folder, image)
                raise Killed
            return plain(*arguments, **named)

        return call

    for name in ("fsync", "replace", "rename", "truncate", "unlink"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    plain = sqlite3.connect

    def connect(*arguments, factory=sqlite3.Connection, **named):
        class Connection(factory):
            execute = counted(factory.execute)
            executemany = counted(factory.executemany)

        return plain(*arguments, factory=Connection, **named)

    monkeypatch.setattr(sqlite3, "connect", connect)
