"""BM25 over the questions of an index, beside a slow one of dictionaries."""

import collections
import math

import numpy as np
import pytest

from qpr_jax.index.question_index import build_index
from qpr_jax.index.recipe import Recipe
from qpr_jax.reranking import lexical
from qpr_jax.reranking.lexical import K1, B, LexicalIndex
from qpr_jax.text.tokenizer import tokenize
from tests.index.folders import encode, put, remove

WORDS = ["what", "is", "the", "way", "to", "learn", "python", "cook", "rice", "2015", "naïve"]


def made_up(count: int, seed: int = 0) -> dict[int, str]:
    rng = np.random.default_rng(seed)
    return {
        3 * i: " ".join(rng.choice(WORDS, size=rng.integers(0, 12))) for i in range(1, count + 1)
    }


def build(questions):
    return build_index(
        encode, [*questions.values()], [*questions], recipe=Recipe(), encoder="abc", log=len
    )


def scores(query: str, texts: list[str]) -> list[float]:
    """Of all texts, removed ones included."""
    documents = [collections.Counter(tokenize(text)) for text in texts]
    mean = sum(d.total() for d in documents) / len(documents)
    found = []
    for document in documents:
        score = 0.0
        for word in {*tokenize(query)}:
            count = sum(word in d for d in documents)
            idf = math.log(1 + (len(documents) - count + 0.5) / (count + 0.5))
            length = 1 - B + B * document.total() / mean
            score += idf * document[word] * (K1 + 1) / (document[word] + K1 * length)
        found.append(score)
    return found


def check(index, found: np.ndarray, query: str) -> None:
    texts = [question.question for question in index.store.get(np.arange(index.rows))]
    all_scores = np.array(scores(query, texts))
    all_scores[index.store.removed_rows[: len(texts)]] = 0
    rows = found[found >= 0]
    assert len({*rows.tolist()}) == len(rows) == min(len(found), (all_scores > 0).sum())
    np.testing.assert_allclose(all_scores[rows], np.sort(all_scores)[::-1][: len(rows)], rtol=1e-5)


QUERIES = ["best way to cook rice", "python python", "", "unheard of", "naïve 2015"]


@pytest.mark.parametrize("pending", [0, 1000])
def test_the_best_of_the_present_questions(monkeypatch, pending):
    monkeypatch.setattr(lexical, "_PENDING", pending)
    index = build(made_up(60))
    found = LexicalIndex(index)
    for round_ in range(3):
        for query, rows in zip(QUERIES, found.search(QUERIES, 7), strict=True):
            check(index, rows, query)
        put(index, made_up(25, seed=round_ + 1) | {900 + round_: "rice"})
        remove(index, 6, 9 + 3 * round_)
    assert found.search([], 7).shape == (0, 7)


def test_of_equal_ones_the_first(monkeypatch):
    index = build(dict.fromkeys(range(5, 30), "rice"))
    remove(index, 6)
    put(index, {99: "rice"})
    assert LexicalIndex(index).search(["rice"], 4).tolist() == [[0, 2, 3, 4]]


def test_no_questions():
    index = build({1: "rice"})
    remove(index, 1)
    assert LexicalIndex(index).search(["rice"], 2).tolist() == [[-1, -1]]
