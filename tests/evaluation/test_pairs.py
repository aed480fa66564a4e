import numpy as np
import pytest
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from qpr_jax.evaluation.pairs import (
    NO_THRESHOLD,
    best_thresholds,
    classification_scores,
    mining_scores,
)
from qpr_jax.index.close_pairs import Pairs

DISTANCES = np.array([0.1, 0.2, 0.2, 0.4, 0.5, 0.9], np.float32)
DUPLICATES = np.array([True, True, False, True, False, False])


@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_best_thresholds_are_the_best_of_all(share):
    rng = np.random.default_rng(0)
    distances = rng.integers(0, 30, 200) / 10
    duplicates = rng.random(200) < share
    best = best_thresholds(distances, duplicates)
    for name, score in (("accuracy", accuracy_score), ("f1", f1_score)):
        scores = {
            t: score(duplicates, distances <= t) for t in [NO_THRESHOLD, *np.unique(distances)]
        }
        assert scores[best[name]] == max(scores.values())


def test_classification_scores_by_hand():
    scores = classification_scores(DISTANCES, DUPLICATES, {"accuracy": 0.1, "f1": 0.45})
    assert scores == {
        "pairs": 6,
        "non_duplicates": 3,
        "accuracy": pytest.approx(4 / 6),
        "majority_accuracy": 0.5,
        "f1": pytest.approx(6 / 7),
        "precision": pytest.approx(3 / 4),
        "recall": 1.0,
        "mcc": pytest.approx((3 * 2 - 1 * 0) / np.sqrt(4 * 3 * 3 * 2)),
        "average_precision": pytest.approx(average_precision_score(DUPLICATES, -DISTANCES)),
        # Of nine pairs of a duplicate and another, seven are in order, and one is level.
        "roc_auc": pytest.approx(7.5 / 9),
    }


CLUSTERS = np.array([0, 0, 0, 1, 1, -1, -1])  # three that mean the same, and two others
FOUND = Pairs(
    np.array([0, 5, 3, 0]), np.array([1, 6, 4, 2]), np.array([0.1, 0.2, 0.3, 0.3], np.float32)
)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 1, 3, 2]])
def test_mining_scores_by_hand(order):
    found = Pairs(*(values[order] for values in FOUND))
    assert mining_scores(found, CLUSTERS) == {
        "true_pairs": 4,
        "found_pairs": 4,
        "average_precision": pytest.approx((1 + 3 / 4 + 3 / 4) / 4),
        "f1": pytest.approx(6 / 8),
        "precision": 0.75,
        "recall": 0.75,
        "threshold": pytest.approx(0.3),
    }


def test_the_average_precision_of_all_pairs_is_that_of_the_field():
    rng = np.random.default_rng(0)
    clusters = rng.integers(-1, 6, 40)
    first, second = np.triu_indices(40, k=1)
    true = (clusters[first] == clusters[second]) & (clusters[first] >= 0)
    distances = (rng.integers(0, 9, len(first)) - 2 * true).astype(np.float32)
    order = np.argsort(distances)
    found = Pairs(first[order], second[order], distances[order])
    expected = average_precision_score(true, -distances)
    assert mining_scores(found, clusters)["average_precision"] == pytest.approx(expected)
