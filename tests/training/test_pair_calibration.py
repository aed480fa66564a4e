"""The probabilities of found pairs that a run fits."""

from types import SimpleNamespace

import numpy as np
import pytest

from qpr_jax.data.clusters import pair_count
from qpr_jax.data.splits import TEST, VALIDATION
from qpr_jax.index.close_pairs import Pairs
from qpr_jax.reranking.calibration import read_calibration
from qpr_jax.reranking.light import read_light
from qpr_jax.training.pair_calibration import (
    calibrate_pairs,
    fit_weights,
    pair_weights,
    same_cluster,
    score_probabilities,
    true_pairs,
)


def made_up(count=3000, seed=0):
    """Questions on a line, in clusters of two that lie close together, and some in none."""
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(count // 2), 2)
    split_of = np.repeat(rng.choice(3, count // 2, p=[0.8, 0.1, 0.1]), 2)
    places = np.repeat(rng.uniform(0, count / 20, count // 2), 2) + rng.normal(0, 0.05, count)
    alone = rng.random(count) < 0.3
    clusters[alone] = -1
    _, clusters[clusters >= 0] = np.unique(clusters[clusters >= 0], return_inverse=True)
    # As in Quora's splits, more of the questions in no cluster are held out.
    split_of[alone] = rng.choice(3, alone.sum(), p=[0.4, 0.3, 0.3])
    order = np.argsort(places)
    places, clusters, split_of = places[order], clusters[order], split_of[order]
    first, second = np.nonzero(np.triu(abs(places[:, None] - places) < 0.3, 1))
    distances = ((places[first] - places[second]) ** 2).astype(np.float32)
    return clusters, split_of, places, Pairs(first, second, distances)


@pytest.mark.parametrize("split", [VALIDATION, TEST])
def test_the_pairs_of_a_split_stand_for_those_found_among_all_questions(split):
    clusters, split_of, _, pairs = made_up()
    queries = np.flatnonzero(split_of == split)
    if split == VALIDATION:
        weights = fit_weights(clusters, split_of, queries, pairs)
    else:
        weights = pair_weights(clusters, queries, pairs)
    same = same_cluster(clusters, pairs)
    assert true_pairs(clusters, queries) == pytest.approx(pair_count(clusters), rel=0.05)
    for kind in (same, ~same):
        assert weights[kind].sum() == pytest.approx(kind.sum(), rel=0.12)
    outside = (split_of != split)[np.stack(pairs[:2])].all(axis=0)
    assert not weights[outside].any()
    if split == VALIDATION:
        tested = (split_of == TEST)[np.stack(pairs[:2])].any(axis=0)
        assert not weights[tested].any()


def test_probabilities_of_distances_fit_the_test_pairs():
    clusters, split_of, places, pairs = made_up(6000, seed=1)
    splits = SimpleNamespace(split_of=split_of, pairs={"validation": range(100)})
    dataset = SimpleNamespace(clusters=clusters, splits=splits)
    encoder = SimpleNamespace(identity="e")
    vectors = np.stack([places, np.zeros(len(places))], axis=1).astype(np.float32)
    known = calibrate_pairs(dataset, encoder, vectors, None)
    assert (known.encoder, known.light, known.reranker) == ("e", None, "")
    scores = known.settings["test"]["distance"]
    assert scores["ece"] < 0.06
    assert scores["brier"] < scores["base_brier"]
    # What it expects holds for the pairs found among all questions, training ones included.
    near = pairs.where(pairs.distances <= known.reach)
    expected = known.probabilities(near.distances).mean()
    assert expected == pytest.approx(same_cluster(clusters, near).mean(), rel=0.15)


def test_scores_by_hand():
    p, same = np.array([0.9, 0.9, 0.6, 0.2]), np.array([True, True, False, False])
    found = score_probabilities(p, same, np.array([1, 1, 2, 4.0]), 4)
    assert found["best_f1"] == pytest.approx(2 * 2 / (2 + 4))
    assert found["half"] == pytest.approx(
        {"threshold": 0.5, "expected": 0.75, "found": 0.5, "recall": 0.5, "f1": 0.5}
    )
    assert found["precision"]["0.9"]["threshold"] == 0.9
    assert found["precision"]["0.9"]["found"] == 1
    assert "0.95" not in found["precision"]
    assert found["precision_asked"] == [0.8, 0.9, 0.95]


def test_a_run_has_a_calibration_of_both(finished):
    workdir, report = finished
    known = read_calibration(workdir / "export" / "calibration")
    assert known.encoder == report["encoder"]
    assert known.reranker == read_light(workdir / "export" / "reranker").identity
    assert {*report["calibration"]["test"]} == {"distance", "light"}
    assert report["calibration"]["reach"] == known.reach
    assert "## Probabilities of found pairs" in (workdir / "report.md").read_text()


def test_a_run_without_clusters_has_none():
    dataset = SimpleNamespace(splits=SimpleNamespace(pairs={"validation": []}))
    encoder = SimpleNamespace(identity="e")
    assert calibrate_pairs(dataset, encoder, np.zeros((0, 2)), None) is None
