"""Estimates against what is built, and the recipes of refusals. No time is asserted."""

import os

import faiss
import numpy as np
import pytest

from qpr_jax.costs import estimate
from qpr_jax.costs.encoding import encode_estimate, measure_encoding
from qpr_jax.costs.estimate import disk_of
from qpr_jax.costs.faiss_costs import faiss_sizes, measure_faiss
from qpr_jax.costs.indexing import index_estimate, smaller_recipes
from qpr_jax.costs.mining import mine_estimate
from qpr_jax.costs.rows import sample_list
from qpr_jax.errors import UserError
from qpr_jax.index.faiss_index import FaissIndex
from qpr_jax.index.recipe import Recipe, check_recipe, fit_recipe
from qpr_jax.index.run import run_encoder
from qpr_jax.retriever import Retriever
from tests.runs import WORDS, write_encoder

QUESTIONS = [f"{WORDS[i % 7]} {WORDS[i % 11]} {i}" for i in range(3000)]
FACTORIES = ["Flat", "SQ8", "HNSW8", "IVF40,Flat", "IVF40,SQ8", "IVF40_HNSW8,SQ4"]


@pytest.fixture
def run(tmp_path):
    write_encoder(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("factory", "assignments"),
    [*((factory, number) for factory in FACTORIES for number in (1, 2)), ("IVF40,PQ2", 1)],
)
def test_the_size_of_an_index_on_disk(tmp_path, factory, assignments):
    count, dimension = 10_000, 24
    recipe = fit_recipe(Recipe(factory, assignments=assignments), count)
    vectors = np.random.default_rng(0).standard_normal((count, dimension), np.float32)
    encoded = 0

    def vectors_of(rows):
        nonlocal encoded
        encoded += len(rows)
        return vectors[rows]

    FaissIndex.build(recipe, vectors_of, count).save(tmp_path / "i.faiss")
    costs = measure_faiss(recipe, count, dimension)
    written = os.path.getsize(tmp_path / "i.faiss")
    assert costs.held == pytest.approx(written, rel=0.12)
    assert costs.encoded == encoded + 1  # the store's first question, for the dimension
    assert costs.memory >= costs.held
    assert costs.seconds > 0
    assert costs[1:] == faiss_sizes(recipe, count, dimension)


@pytest.mark.parametrize("factory", ["Flat", "IVF20,Flat"])
def test_the_disk_of_an_index(tmp_path, run, factory):
    recipe = Recipe(factory)
    found = index_estimate(tmp_path / "mine", run, recipe)(sample_list(QUESTIONS))
    entries = ((i, None, text) for i, text in enumerate(QUESTIONS, start=1))
    Retriever.build_in(tmp_path / "mine", entries, run=run, recipe=recipe)
    assert found.disk == pytest.approx(disk_of(tmp_path / "mine"), rel=0.25)
    assert found.count == len(QUESTIONS)
    assert found.memory > 0


def test_encoding_is_measured_on_few_and_on_many_questions(run):
    encoder = run_encoder(run)
    for questions in (QUESTIONS[:1], QUESTIONS):
        costs = measure_encoding(encoder, questions)
        assert costs.seconds > 0
        assert costs.first_seconds >= 0
    assert costs.all_seconds(10) >= 10 * costs.seconds


def test_the_file_of_vectors(tmp_path, run):
    encoder = run_encoder(run)
    found = encode_estimate(tmp_path / "v.npy", encoder)(sample_list(QUESTIONS))
    assert found.disk == 4 * encoder.dimension * len(QUESTIONS)


def test_the_pairs_that_are_expected(tmp_path, run):
    encoder, sample = run_encoder(run), sample_list(QUESTIONS)
    same = sample_list(["how can i learn python"] * 1000)
    all_pairs = 1000 * 999 // 2
    found = mine_estimate(tmp_path / "m", encoder, max_distance=0.0, count=None)(same)
    assert found.disk > all_pairs * 100
    few = mine_estimate(tmp_path / "m", encoder, max_distance=None, count=10)(sample)
    # The vectors, codes of at most 64 coordinates, and ten pairs.
    assert few.disk < 4 * len(QUESTIONS) * (encoder.dimension + 65) + 10_000


@pytest.mark.parametrize("recipe", [Recipe("Flat"), Recipe("IVF2000,Flat", assignments=3)])
@pytest.mark.parametrize("dimension", [6, 7, 300, 384])
def test_smaller_recipes_are_sound_and_smaller(recipe, dimension):
    count = 3_000_000
    sizes = [faiss_sizes(recipe, count, dimension).held]
    for smaller in smaller_recipes(recipe, dimension):
        check_recipe(smaller, dimension)
        faiss.index_factory(dimension, smaller.factory)
        sizes.append(faiss_sizes(smaller, count, dimension).held)
    if dimension >= 300:
        assert sizes == sorted(sizes, reverse=True)


def test_a_recipe_that_fits_is_named(tmp_path, run, monkeypatch):
    estimate_of = index_estimate(tmp_path / "mine", run, Recipe("HNSW32"))
    sample = sample_list(QUESTIONS)
    needed = estimate_of(sample).disk
    monkeypatch.setattr(estimate, "free_disk", lambda path: needed - 1)
    with pytest.raises(UserError, match="use `factory=IVF2000,SQ8`, which fits"):
        estimate_of(sample)
    monkeypatch.setattr(estimate, "free_disk", lambda path: 0)
    with pytest.raises(UserError, match="give fewer `questions`"):
        estimate_of(sample)
