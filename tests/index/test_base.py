"""A kind of index is a class and an entry of BACKENDS."""

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index import base
from qpr_jax.index.base import backend
from qpr_jax.index.exact import exact_top_k
from qpr_jax.index.faiss_index import FaissIndex
from qpr_jax.index.recipe import Recipe
from qpr_jax.retriever import Retriever
from tests.runs import write_encoder


class PlainIndex:
    """All vectors in one array."""

    def __init__(self, recipe, vectors, recall=1.0):
        self.recipe, self.recall, self.dimension = recipe, recall, vectors.shape[1]
        self.vectors, self.live = vectors, np.ones(len(vectors), bool)

    def __len__(self):
        return int(self.live.sum())

    def add(self, rows, vectors):
        assert rows.tolist() == [*range(len(self.vectors), len(self.vectors) + len(rows))]
        self.vectors = np.concatenate([self.vectors, vectors])
        self.live = np.concatenate([self.live, np.ones(len(rows), bool)])

    def remove(self, rows):
        self.live[rows] = False

    def search(self, vectors, k):
        live = np.flatnonzero(self.live)
        distances, places = exact_top_k(vectors, self.vectors[live], k)
        return distances, np.where(places < 0, -1, live[places])

    def save(self, path):
        with open(path, "wb") as file:
            np.save(file, self.vectors)

    @staticmethod
    def check(recipe, dimension):
        if recipe.factory != "Plain":
            raise UserError(f"expected Plain, got {recipe.factory}")

    @staticmethod
    def fit(recipe, count):
        return recipe

    @classmethod
    def build(cls, recipe, vectors_of, count, folder):
        return cls(recipe, vectors_of(np.arange(count)))

    @classmethod
    def empty(cls, recipe, dimension):
        return cls(recipe, np.zeros((0, dimension), np.float32))

    @classmethod
    def read(cls, path, recipe, recall, dimension):
        return cls(recipe, np.load(path), recall)


@pytest.mark.parametrize("factory", ["Plain", "Flat"])
def test_a_backend_is_a_class_and_an_entry(factory, tmp_path, monkeypatch):
    monkeypatch.setitem(base.BACKENDS, "Plain", f"{__name__}:PlainIndex")
    monkeypatch.setattr(
        base.pkgutil,
        "resolve_name",
        {f"{__name__}:PlainIndex": PlainIndex, base.BACKENDS["Flat"]: FaissIndex}.__getitem__,
    )
    write_encoder(tmp_path / "run")
    retriever = Retriever.build(["rice", "rye"], run=tmp_path / "run", recipe=Recipe(factory))
    assert type(retriever.index.vectors) is (PlainIndex if factory == "Plain" else FaissIndex)
    retriever.save(tmp_path)
    retriever.add(["bread", "oats"])
    retriever.remove([1])
    for same in (retriever, Retriever.load(tmp_path)):
        assert [hits[0].id for hits in same.search(["bread", "oats", "rice"], 9)] == [2, 3, 0]
        assert len(same.search(["rye"], 9)[0]) == len(same) == 3
    retriever.compact()
    assert [*Retriever.load(tmp_path).index] == [(0, "rice"), (2, "bread"), (3, "oats")]


def test_an_unknown_factory_is_refused(monkeypatch):
    assert backend("IVF20,Flat") is backend("SQ8") is FaissIndex
    for factory in ("Plain", "", None):
        with pytest.raises(UserError, match=r"`factory`: expected .* Flat"):
            backend(factory)


def test_the_longest_beginning_names_the_kind(monkeypatch):
    monkeypatch.setitem(base.BACKENDS, "FlatTable", "builtins:dict")
    assert base.backend("FlatTable9") is dict
    assert base.backend("Flat") is FaissIndex
