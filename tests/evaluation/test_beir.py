import io

import numpy as np
import pytest

from qpr_jax.data.beir_tasks import write_beir
from qpr_jax.errors import UserError
from qpr_jax.evaluation.benchmarks import (
    CUTOFFS,
    beir_scores,
    graded_scores,
    ranked_documents,
    write_run,
)

NAMES = ("ndcg", "map", "recall", "precision", "mrr")


def on_a_line(texts):
    """A text is a number, and its vector has that as one coordinate, beside a large offset."""
    return np.array([[float(text), 1000.0, 0.0] for text in texts], np.float32)


def test_documents_are_ranked_by_distance():
    queries = {"q": "0", "d1": "10"}
    corpus = [("d1", "10"), ("d2", "1"), ("d3", "-3"), ("d4", "12")]
    found = ranked_documents(on_a_line, queries, corpus, depth=2)
    assert [*found["q"].items()] == [("d2", -1.0), ("d3", -9.0)]
    # The document with the query's own id is left out, as BEIR does.
    assert [*found["d1"].items()] == [("d4", -4.0), ("d2", -81.0)]


def test_the_later_id_comes_first_of_equal_scores():
    corpus = [("b", "1"), ("a", "1"), ("é", "1"), ("zero", "0"), ("nil", "0"), ("c", "-1")]
    scores = [0, 0, -1, -1, -1, -1]
    hits = ranked_documents(on_a_line, {"q": "0"}, corpus)["q"]
    assert [*hits.items()] == [*zip(["zero", "nil", "é", "c", "b", "a"], scores, strict=True)]
    file = io.StringIO()
    write_run(file, {"q": hits})
    rows = [line.split() for line in file.getvalue().splitlines()]
    assert rows[0] == ["q", "Q0", "zero", "1", "0", "qpr_jax"]
    assert [row[3] for row in rows] == list("123456")
    assert [float(row[4]) for row in rows] == scores


def test_chunks_change_nothing():
    rng = np.random.default_rng(0)
    numbers = rng.integers(-300, 300, size=500)  # many at one distance
    corpus = [(f"d{i}", f"{number}") for i, number in enumerate(numbers)]
    queries = {f"q{i}": f"{10 * i}" for i in range(7)}
    whole = ranked_documents(on_a_line, queries, corpus, depth=500)
    assert ranked_documents(on_a_line, queries, iter(corpus), depth=500, chunk=33) == whole
    for depth in (1, 20, 33):
        some = ranked_documents(on_a_line, queries, corpus, depth=depth, chunk=33)
        for query, hits in whole.items():
            assert [*some[query].items()] == [*hits.items()][:depth]


def test_scores_worked_by_hand():
    """Of documents that are lost or graded below 0, and of a query without relevant ones."""
    qrels = {"q1": {"a": 3, "b": 1, "c": 0, "gone": 2, "below": -1}, "q2": {"a": 1}, "q3": {"a": 0}}
    found = {"q1": ["b", "below", "c", "a", "x"], "q2": ["x", "a"], "q3": ["a"]}
    rankings = {
        query: {name: -float(i) for i, name in enumerate(names)} for query, names in found.items()
    }
    scores = graded_scores(rankings, qrels)
    log2 = np.log2
    best = 3 + 2 / log2(3) + 1 / 2
    expected = {
        "ndcg@10": ((1 + 3 / log2(5)) / best + 1 / log2(3)) / 3,
        "map@10": ((1 / 1 + 2 / 4) / 3 + (1 / 2) / 1) / 3,
        "recall@100": (2 / 3 + 1) / 3,
        "precision@10": (2 / 10 + 1 / 10) / 3,
        "mrr@10": (1 + 1 / 2) / 3,
    }
    assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert set(scores) == {f"{name}@{k}" for name in NAMES for k in CUTOFFS}


def test_agrees_with_ranx(monkeypatch):
    """On grades 0 to 3, and rankings of which many documents are judged."""
    # Compiled, ranx takes 40 s on its first run.
    monkeypatch.setattr(pytest.importorskip("numba").config, "DISABLE_JIT", True)
    ranx, rng = pytest.importorskip("ranx"), np.random.default_rng(0)
    documents, qrels, rankings = [f"d{i}" for i in range(300)], {}, {}
    for query in ("q0", "q1", "q2", "q3"):
        judged = rng.choice(documents, size=60, replace=False).tolist()
        grades = rng.integers(0, 4, size=60)
        grades[0] = 1  # ranx leaves out queries without relevant documents
        qrels[query] = dict(zip(judged, grades.tolist(), strict=True))
        order = rng.permutation(documents)[:100].tolist()
        rankings[query] = {name: 1 - i / 128 for i, name in enumerate(order)}
    # Its `ndcg` has the grade for a gain, as trec_eval; `ndcg_burges` is the other.
    theirs = ranx.evaluate(
        ranx.Qrels(qrels), ranx.Run(rankings), [f"{name}@{k}" for name in NAMES for k in CUTOFFS]
    )
    assert graded_scores(rankings, qrels) == pytest.approx(theirs, abs=1e-12)


def test_sets_that_do_not_fit(tmp_path):
    write_beir(tmp_path, [("d 1", "1")], [("q1", "0")], {"test": [("q2", "d 1", 1)]})
    with pytest.raises(UserError, match="expected a text for each query of test, got none for q2"):
        beir_scores(on_a_line, tmp_path)
    write_beir(tmp_path, [("d 1", "1")], [("q1", "0")], {"test": [("q1", "d 1", 1)]})
    assert beir_scores(on_a_line, tmp_path)["mrr@1"] == 1
    with pytest.raises(UserError, match="expected ids without blanks, got 'd 1'; leave `trec`"):
        beir_scores(on_a_line, tmp_path, trec=tmp_path / "a.run")
    assert not (tmp_path / "a.run").exists()
