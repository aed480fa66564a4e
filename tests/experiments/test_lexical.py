import math
import sys

import numpy as np
import pytest

from experiments.lexical import (
    bm25_search,
    bm25_text_search,
    tfidf_search,
    tfidf_text_search,
)
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import rank

QUESTIONS = [
    "how do i learn python",
    "How do I learn Python?",
    "learn python",
    "what is a python",
    "who won the cup",
    "",
    "🦓",
]


@pytest.fixture(params=["bm25", "tfidf"])
def search(request):
    if request.param == "bm25":
        pytest.importorskip("bm25s")
        return bm25_search(QUESTIONS)
    return tfidf_search(QUESTIONS)


def test_nearest_by_shared_words(search):
    found = rank(search, np.arange(len(QUESTIONS)), k=3)
    np.testing.assert_array_equal(found[:2], [[1, 2, 3], [0, 2, 3]])
    assert found[2, 2] == 3
    # No word in common: nothing is found.
    np.testing.assert_array_equal(found[4:], [[-1, -1, -1]] * 3)


def test_more_places_than_questions(search):
    found = search(np.array([0, 4, 5]), 9)
    assert found.shape == (3, 9)
    assert sorted(found[0].tolist()) == [-1] * 5 + [0, 1, 2, 3]
    assert found[1].tolist() == [4] + [-1] * 8
    assert found[2].tolist() == [-1] * 9


def test_order_of_bm25_scores_worked_by_hand():
    pytest.importorskip("bm25s")
    questions = ["a b", "a a c", "b c c c d", "e f"]
    lengths = [2, 3, 5, 2]

    def score(query: str, i: int) -> float:
        words = questions[i].split()
        total = 0.0
        for word in query.split():
            having = sum(word in question.split() for question in questions)
            idf = math.log(1 + (len(questions) - having + 0.5) / (having + 0.5))
            count = words.count(word)
            norm = 0.9 * (1 - 0.4 + 0.4 * lengths[i] / np.mean(lengths))
            total += idf * count / (count + norm)
        return total

    search = bm25_search(questions)
    for position, query in enumerate(questions):
        scores = [score(query, i) for i in range(4)]
        expected = [i for i in np.argsort(-np.array(scores), kind="stable") if scores[i] > 0]
        found = [i for i in search(np.array([position]), 4)[0].tolist() if i >= 0]
        assert found == expected


def test_order_of_tfidf_scores_worked_by_hand():
    questions = ["a b", "a a c", "b c c c d", "e f"]
    words = sorted({word for question in questions for word in question.split()})
    counts = np.array([[q.split().count(word) for word in words] for q in questions], float)
    vectors = counts * (1 + np.log(5 / (1 + (counts > 0).sum(axis=0))))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = vectors @ vectors.T
    search = tfidf_search(questions)
    for position, row in enumerate(cosine):
        expected = [i for i in np.argsort(-row, kind="stable") if row[i] > 0]
        found = [i for i in search(np.array([position]), 4)[0].tolist() if i >= 0]
        assert found == expected


def test_tfidf_in_blocks(monkeypatch):
    expected = tfidf_search(QUESTIONS)(np.arange(7), 3)
    monkeypatch.setattr("experiments.lexical._BLOCK", 2)
    np.testing.assert_array_equal(tfidf_search(QUESTIONS)(np.arange(7), 3), expected)


def test_the_extra_is_named_where_bm25s_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(UserError, match=r"BM25: expected the package bm25s, .*qpr_jax\[lexical\]"):
        bm25_search(QUESTIONS)


@pytest.mark.parametrize("make", [bm25_text_search, tfidf_text_search])
def test_texts_that_are_not_indexed(make):
    if make is bm25_text_search:
        pytest.importorskip("bm25s")
    rows, scores = make(QUESTIONS)(["python zebra", "zebra", "", "who won the cup"], 2)
    assert {*rows[0].tolist()} <= {0, 1, 2, 3}
    assert (rows[1:3] == -1).all()
    assert (scores[1:3] == 0).all()
    assert rows[3].tolist() == [4, -1]
    assert scores[3, 0] > scores[0, 0] >= scores[0, 1] > 0
    assert scores.dtype == np.float32
    assert [part.shape for part in make(QUESTIONS)([], 2)] == [(0, 2), (0, 2)]


def test_the_scores_of_tfidf_are_cosines():
    rows, scores = tfidf_text_search(QUESTIONS)(["learn python", "who won the cup"], 3)
    np.testing.assert_allclose(scores[:, 0], 1, rtol=1e-6)
    assert rows[:, 0].tolist() == [2, 4]
