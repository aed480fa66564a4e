import numpy as np
import pytest

from qpr_jax.evaluation import metrics

# Four queries, five places each.
RELEVANCE = np.array(
    [
        [1, 0, 1, 0, 0],  # 2 of 2 found, at 1 and 3
        [0, 0, 0, 1, 0],  # 1 of 3 found, at 4
        [0, 0, 0, 0, 0],  # 0 of 1 found
        [1, 1, 1, 1, 1],  # 5 of 9 found
    ],
    bool,
)
RELEVANT = np.array([2, 3, 1, 9])


def gain(*ranks: int) -> float:
    return sum(1 / np.log2(1 + rank) for rank in ranks)


def test_nothing_relevant_scores_zero():
    nothing, none = np.zeros((1, 5), bool), np.array([0])
    assert metrics.recall(nothing, none, 5) == 0
    assert metrics.average_precision(nothing, none, 5) == 0
    assert metrics.ndcg(nothing, none, 5) == 0


def test_lists_shorter_than_the_cut():
    short = RELEVANCE[:, :3]
    np.testing.assert_allclose(metrics.recall(short, RELEVANT, 20), [1, 0, 0, 3 / 9])
    np.testing.assert_allclose(metrics.ndcg(short, RELEVANT, 20)[0], gain(1, 3) / gain(1, 2))
    np.testing.assert_allclose(metrics.reciprocal_rank(short, 20), [1, 0, 0, 1])


def test_no_queries():
    nothing, none = np.zeros((0, 5), bool), np.zeros(0, int)
    assert metrics.hits(nothing, 1).shape == (0,)
    assert metrics.ndcg(nothing, none, 5).shape == (0,)
    assert metrics.reciprocal_rank(nothing, 5).shape == (0,)


def test_agrees_with_ranx(monkeypatch):
    # Compiled, ranx takes 40 s on its first run.
    monkeypatch.setattr(pytest.importorskip("numba").config, "DISABLE_JIT", True)
    ranx = pytest.importorskip("ranx")
    rng = np.random.default_rng(0)
    relevance = rng.random((40, 20)) < 0.15
    relevant = relevance.sum(axis=1) + rng.integers(1, 8, size=40)
    qrels, run = {}, {}
    for row in range(40):
        found = {f"d{i}": 1 for i in np.flatnonzero(relevance[row])}
        missed = {f"m{i}": 1 for i in range(relevant[row] - relevance[row].sum())}
        qrels[f"q{row}"] = found | missed
        run[f"q{row}"] = {f"d{i}": 1 - i / 100 for i in range(20)}
    cutoffs = (1, 5, 10, 20)
    names = [
        f"{name}@{k}"
        for name in ("hit_rate", "recall", "precision", "map", "ndcg", "mrr")
        for k in cutoffs
    ]
    theirs = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), names)
    for k in cutoffs:
        ours = {
            "hit_rate": metrics.hits(relevance, k),
            "recall": metrics.recall(relevance, relevant, k),
            "precision": metrics.precision(relevance, k),
            "map": metrics.average_precision(relevance, relevant, k),
            "ndcg": metrics.ndcg(relevance, relevant, k),
            "mrr": metrics.reciprocal_rank(relevance, k),
        }
        for name, values in ours.items():
            assert values.mean() == pytest.approx(theirs[f"{name}@{k}"], abs=1e-12), name
