"""The registry of stores, with one of another package."""

import contextlib

import numpy as np
import pytest

from qpr_jax import locations
from qpr_jax.errors import UserError
from qpr_jax.index.protocol import Hit
from qpr_jax.index.vectors import exact_top_k
from qpr_jax.retriever import Retriever
from qpr_jax.text.cleaning import Cleaner


class MemoryStore:
    """Questions and vectors in a dictionary."""

    defaults, at = {"nprobe": 1}, {}

    @classmethod
    def open(cls, location):
        if location not in cls.at:
            raise UserError(f"{location}: found no store")
        return cls.at[location]

    @classmethod
    def build(cls, location, questions, encoder, index_config, encoder_name, save_encoder):
        store = cls.at[location] = cls()
        store.location, store.index_config, store.encoder_name = (
            location,
            index_config,
            encoder_name,
        )
        store.encoder, store.dimension, store.cleaner = (
            encoder.fingerprint,
            encoder.dimension,
            Cleaner(),
        )
        store.rows, store.changes, store.used = {}, 0, 0
        questions = [*questions]
        store.add(questions, encoder.encode([question.text for question in questions]))
        return store

    @property
    def version(self):
        return str(self.changes)

    def require(self, encoder):
        if encoder != self.encoder:
            raise UserError("expected an index of another encoder")

    def __len__(self):
        return len(self.rows)

    def search(self, vectors, k):
        rows = [*self.rows.values()]
        stored = np.array([vector for _, vector in rows], np.float32).reshape(-1, self.dimension)
        found = zip(*exact_top_k(vectors, stored, k, self.index_config.metric), strict=True)
        return [
            [Hit(*rows[i][0][:2], float(at), None, rows[i][0][2]) for at, i in pairs if i >= 0]
            for pairs in (zip(*pair, strict=True) for pair in found)
        ]

    def add(self, questions, vectors):
        for question, vector in zip(questions, vectors, strict=True):
            self.rows.pop(str(question.id), None)
            self.rows[str(question.id)] = question, vector
            self.used += 1
        self.changes += 1

    def remove(self, ids):
        self.changes += 1
        return sum(self.rows.pop(str(id), None) is not None for id in ids)

    def get(self, ids):
        return [self.rows.get(str(id), (None,))[0] for id in ids]

    def questions(self):
        return (question for question, _ in [*self.rows.values()])

    def blocks(self):
        yield [*self.questions()], np.array([vector for _, vector in self.rows.values()])

    def new_ids(self, count):
        return [*range(10**6 + self.used, 10**6 + self.used + count)]

    def compact(self):
        pass

    def facts(self):
        return {"store": "memory"}

    @contextlib.contextmanager
    def changing(self):
        yield


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    monkeypatch.setitem(locations.STORES, "memory", MemoryStore)
    monkeypatch.setattr(MemoryStore, "at", {})


def test_a_retriever_of_a_store_that_is_registered_by_a_scheme(encoder_run, tmp_path):
    entries = ["how to cook rice", "what is rye"]
    built = Retriever.build(entries, location="memory://a", encoder=encoder_run)
    assert (built.store.index_config.nprobe, built.store.encoder_name) == (1, str(encoder_run))
    loaded = Retriever.load("memory://a", indexed=True)
    (new,) = loaded.add("where is my car")
    assert [hit.id for hit in built.search("where is my car", 1)[0]] == [new]
    assert built.remove(0) == 1
    assert loaded.ids() == [1, new]
    for location in (tmp_path / "folder", "memory://b"):
        before, text = [*loaded], f"kept in {location}"
        loaded.save(location)
        assert [*Retriever.load(location)] == before
        loaded.add(text, [text])  # where it was saved
        assert text in Retriever.load(location)
    assert [*built] == [*Retriever.load("memory://a")] == before[:2]
    with pytest.raises(UserError, match="c: found no store"):
        Retriever.load("memory://c")


def test_a_search_cleans_each_text_once(monkeypatch):
    texts = [f"<p>Hi there,</p>\n{thing}" for thing in ("rice", "rye", "a car", "tea", "a bike")]
    retriever, cleaned, clean = Retriever.build(texts), [], Cleaner.clean
    monkeypatch.setattr(
        Cleaner, "clean", lambda self, text: (cleaned.append(text), clean(self, text))[1]
    )
    (hits,) = retriever.search("Hi there,\nrice?", 3)
    assert hits[0].score is not None
    assert sorted(cleaned) == sorted(["Hi there,\nrice?", *texts])
