import pathlib
import subprocess
import sys

import numpy as np
import pytest

import qpr_jax
from qpr_jax.errors import UserError
from qpr_jax.index.recipe import Recipe
from qpr_jax.retriever import Hit, Retriever
from tests.retriever.conftest import QUESTIONS

ROOT = pathlib.Path(qpr_jax.__file__).parents[1]


def test_search_finds_the_question_itself_first(retriever):
    assert [hits[0] for hits in retriever.search(QUESTIONS, k=2)] == [
        Hit(id, question, pytest.approx(0, abs=1e-9))
        for question, id in zip(QUESTIONS, [7, 8, 3, 4], strict=True)
    ]


def test_distances_are_squared_euclidean_and_sorted(retriever):
    vectors = retriever.encode(QUESTIONS)
    query = retriever.encode(["learn rice"])[0]
    (hits,) = retriever.search(["learn rice"], k=4)
    squares = ((vectors - query) ** 2).sum(axis=1)
    order = np.argsort(squares)
    assert [hit.question for hit in hits] == [QUESTIONS[i] for i in order]
    np.testing.assert_allclose([hit.distance for hit in hits], squares[order], rtol=1e-5)
    assert all(type(hit.distance) is float for hit in hits)


def test_encode(retriever):
    vectors = retriever.encode(["how can i learn python quickly", ""])
    assert vectors.shape == (2, 6)
    assert vectors.dtype == np.float32
    assert retriever.encode([]).shape == (0, 6)


def test_never_more_hits_than_questions(retriever):
    for k in (4, 5, 10**9):
        assert [len(hits) for hits in retriever.search(["rice", "", "🦓\ud800\x00"], k=k)] == [
            4
        ] * 3
    assert len(retriever.search(["rice"])[0]) == 4
    assert len(retriever.search(["rice"], k=np.int64(1))[0]) == 1
    assert retriever.search([]) == []


def test_as_many_hits_as_asked_for_where_lists_are_probed(run):
    questions = [f"question {i} about {i % 7}" for i in range(600)]
    retriever = Retriever.build(questions, run=run)
    assert retriever.index.recipe.factory == "IVF15,Flat"
    (hits,) = retriever.search(["learn python"], k=600)
    assert sorted(hit.id for hit in hits) == list(range(600))


def test_build_numbers_questions_by_default(run):
    retriever = Retriever.build(np.array(QUESTIONS), run=str(run))
    assert retriever.search(["How to cook rice?"], k=1)[0][0].id == 2


def test_build_says_nothing(run, capfd):
    Retriever.build(QUESTIONS, run=run)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("questions", "ids", "message"),
    [
        ([], None, "`questions`: expected questions to index, got none"),
        ("rice", None, "`questions`: expected a list of strings, got a str"),
        (["a", None], None, "got NoneType at position 1"),
        (["a", "b"], [1], r"`ids`: expected one a question \(2\), got 1"),
        (["a", "b"], [1, 1], "`ids`: expected distinct ids, got 1 twice"),
    ],
)
def test_wrong_builds_are_refused(run, questions, ids, message):
    with pytest.raises(UserError, match=message):
        Retriever.build(questions, ids, run=run)


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        ("rice", 5, "`queries`: expected a list of strings, got a str; pass "),
        ([None], 5, "`queries`: expected strings, got NoneType at position 0"),
        (["rice"], 0, "`k`: expected 1 or more, got 0"),
        (["rice"], -1, "`k`: expected 1 or more, got -1"),
        (["rice"], 2.5, "`k`: expected a whole number, got 2.5"),
        (["rice"], None, "`k`: expected a whole number, got None"),
    ],
)
def test_wrong_searches_are_refused(retriever, queries, k, message):
    with pytest.raises(UserError, match=message):
        retriever.search(queries, k)


def test_encode_refuses_what_is_no_list_of_strings(retriever):
    with pytest.raises(UserError, match="`queries`: expected a list of strings, got a str"):
        retriever.encode("rice")


def test_another_recipe(run):
    questions = [f"question {i} about {i % 7}" for i in range(1000)]
    lines: list[str] = []
    recipe = Recipe("IVF20,SQ8", "ip", probes=19)
    retriever = Retriever.build(questions, run=run, recipe=recipe, log=lines.append)
    assert retriever.index.recipe == recipe
    assert lines[0].startswith("index: IVF20,SQ8, 1,000 questions, recall@10 ")
    vectors = retriever.encode(["learn python", *questions])
    found = retriever.search(["learn python"], 3)[0]
    best = np.sort(-vectors[1:] @ vectors[0])[:3]
    np.testing.assert_allclose([hit.distance for hit in found], best, rtol=0.03)


def test_the_package_shows_it():
    assert qpr_jax.Retriever is Retriever
    assert qpr_jax.Hit is Hit
    assert qpr_jax.Recipe is Recipe


WITHOUT_JAX = """
import sys
for name in ("jax", "jaxlib", "flax", "optax", "orbax"):
    sys.modules[name] = None  # any import of it fails
from qpr_jax import Retriever
retriever = Retriever.load(sys.argv[1])
(hits,) = retriever.search(["How to cook rice?"], k=2)
print(hits[0].id, len(hits), retriever.encode(["rice"]).shape)
import qpr_jax.evaluation.retrieval, qpr_jax.evaluation.lexical
"""


def test_needs_no_jax(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_JAX, str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.stderr == ""
    assert done.stdout == "3 2 (1, 6)\n"


WITHOUT_NUMBA = """
import sys
for name in ("jax", "numba", "rich"):
    sys.modules[name] = None
import qpr_jax.index.folder, qpr_jax.index.upgrading, qpr_jax.index.exact
assert "faiss" in sys.modules
from qpr_jax import ids, locks
"""


def test_loading_the_index_needs_no_numba():
    subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT_NUMBA], check=True, cwd=ROOT)
