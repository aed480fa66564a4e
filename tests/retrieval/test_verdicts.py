import numpy as np
import pytest
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from qpr_jax.errors import UserError
from qpr_jax.retrieval.mining import Pairs
from qpr_jax.retrieval.verdicts import (
    best_thresholds,
    classification_scores,
    mining_scores,
    threshold_of_precision,
)

DISTANCES = np.array([0.1, 0.2, 0.2, 0.4, 0.5, 0.9], np.float32)
DUPLICATES = np.array([True, True, False, True, False, False])


def test_best_thresholds_are_the_best_of_all():
    rng = np.random.default_rng(0)
    distances = rng.integers(0, 30, 200) / 10
    duplicates = rng.random(200) < 1 / (1 + distances)
    best = best_thresholds(distances, duplicates)
    for name, score in (("accuracy", accuracy_score), ("f1", f1_score)):
        scores = {t: score(duplicates, distances <= t) for t in np.unique(distances)}
        assert scores[best[name]] == max(scores.values())


def test_classification_scores_by_hand():
    scores = classification_scores(DISTANCES, DUPLICATES, {"accuracy": 0.1, "f1": 0.45})
    assert scores == {
        "pairs": 6,
        "non_duplicates": 3,
        "accuracy": pytest.approx(4 / 6),
        "f1": pytest.approx(6 / 7),
        "precision": pytest.approx(3 / 4),
        "recall": 1.0,
        "average_precision": pytest.approx(average_precision_score(DUPLICATES, -DISTANCES)),
    }


@pytest.mark.parametrize(("wanted", "threshold"), [(0.9, 0.1), (0.75, 0.4), (0.5, 0.9)])
def test_the_threshold_of_a_precision(wanted, threshold):
    assert threshold_of_precision(DISTANCES, DUPLICATES, wanted) == pytest.approx(threshold)


def test_no_threshold_has_the_precision():
    with pytest.raises(UserError, match=r"precision of 0\.99, got at most 0\.667 on 3 labelled"):
        threshold_of_precision(np.array([1.0, 2.0, 3.0]), np.array([False, True, True]), 0.99)


@pytest.mark.parametrize("label", [True, False])
def test_labels_of_one_kind(label):
    with pytest.raises(UserError, match="of both kinds"):
        best_thresholds(DISTANCES, np.full(6, label))


def test_mining_scores_by_hand():
    # Three questions mean the same, and two others; of the four pairs three are found.
    clusters = np.array([0, 0, 0, 1, 1, -1, -1])
    found = Pairs(
        np.array([0, 5, 3, 0]), np.array([1, 6, 4, 2]), np.array([0.1, 0.2, 0.3, 0.3], np.float32)
    )
    assert mining_scores(found, clusters) == {
        "true_pairs": 4,
        "found_pairs": 4,
        "average_precision": pytest.approx((1 + 2 / 3 + 3 / 4) / 4),
        "f1": pytest.approx(6 / 8),
        "precision": 0.75,
        "recall": 0.75,
        "threshold": pytest.approx(0.3),
    }


def test_mining_without_anything_found_or_to_find():
    nothing = Pairs(np.zeros(0, int), np.zeros(0, int), np.zeros(0, np.float32))
    assert mining_scores(nothing, np.array([0, 0]))["f1"] == 0
    with pytest.raises(UserError, match="expected duplicates"):
        mining_scores(nothing, np.array([-1, -1]))
