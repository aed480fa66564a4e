"""Probabilities of found pairs: their curves, and the fit to verdicts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from qpr_jax.data.pairs import LabeledPairs, Verdicts
from qpr_jax.errors import UserError
from qpr_jax.evaluation.metrics import reliability
from qpr_jax.reranking.calibration import (
    PairCalibration,
    calibrate,
    threshold_of_precision,
)
from qpr_jax.reranking.recalibration import (
    cross_validate,
    first_curve,
    fit_map,
    recalibrate,
    refit,
    start_of,
)
from tests.reranking.test_model_folders import CURVE

LIGHT = {"light": np.array([[-1.0, 1.0], [0.0, 1.0]]), "reranker": "r"}


def calibration(**changes) -> PairCalibration:
    return PairCalibration("an encoder", CURVE, 2.0, **changes)


def test_distances_become_probabilities_and_back():
    known = calibration(**LIGHT)
    found = known.probabilities(np.array([0, 0.5, 1.5, 3, 9], np.float32))
    assert found == pytest.approx([0.9, 0.55, 0.2, 0.1, 0])
    for probability, distance in ((0.9, 0), (0.55, 0.5), (0.2, 2), (0.1, 3), (0, 4)):
        assert known.distance_at(probability) == pytest.approx(distance)
    for probability in np.random.default_rng(0).uniform(0, 0.9, 200):
        assert known.probabilities(np.array([known.distance_at(probability)])) >= probability
    assert known.distance_at(0.95) == 0
    assert known.light_probabilities(np.array([-0.5])) == [0.25]


def test_isotonic_regression_is_that_of_scikit_learn():
    """Of scores that repeat, counted by weights, some of them 0."""
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 90, 400) / 7
    labels, weights = rng.random(400) < scores / 13, rng.integers(0, 3, 400).astype(float)
    expected = IsotonicRegression(out_of_bounds="clip").fit(scores, labels, weights)
    places, values = calibrate(scores, labels, weights)
    assert places.tolist() == expected.X_thresholds_.tolist()
    np.testing.assert_allclose(values, expected.y_thresholds_, rtol=1e-12, atol=1e-12)


def test_the_lowest_threshold_with_a_mean_probability():
    p = np.array([0.5, 1.0, 0.8, 0.5, 0.1])
    assert threshold_of_precision(p, 0.9) == 0.8
    assert threshold_of_precision(p, 0.7) == 0.5  # both pairs of .5 are found together
    assert threshold_of_precision(p, 0.1) == 0.1
    assert threshold_of_precision(p, 0.9, np.array([1, 1, 9, 1, 1.0])) == 1.0
    for few in (p[2:], p[:0]):
        with pytest.raises(UserError, match="mean probability"):
            threshold_of_precision(few, 0.9)


def shifted(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Old probabilities, true ones of a logit two lower, and labels by these."""
    rng = np.random.default_rng(0)
    old = rng.uniform(0.02, 0.98, count)
    true = 1 / (1 + np.exp(2) * (1 - old) / old)
    return old, true, rng.random(count) < true


@pytest.mark.parametrize(("count", "error"), [(200, 0.06), (5000, 0.03)])
def test_a_map_corrects_a_shift(count, error):
    old, true, labels = shifted(count)
    ones = np.ones(count)
    assert abs(fit_map(old, labels, ones)(old) - true).mean() < error
    held = cross_validate(old, labels, ones, np.arange(count))
    before, after = (reliability(p, labels) for p in (old, held))
    assert after["ece"] < before["ece"] / 2
    assert after["brier"] < before["brier"]


def test_a_verdict_counts_as_many_pairs_as_it_stands_for():
    old, labels = np.full(40, 0.5), np.arange(40) % 2 == 0
    weights = np.where(labels, 1.0, 9.0)
    assert fit_map(old, labels, weights)(old[:1]) == pytest.approx(0.1, abs=0.02)


def test_curves_are_fitted_and_stay_probabilities():
    rng = np.random.default_rng(0)
    distances, ones = rng.uniform(0, 4, 300), np.ones(300)
    labels = rng.random(300) < 1 / (1 + np.exp(3 * (distances - 1)))
    old = PairCalibration("e", first_curve(distances), 4.0)
    new = refit(old, distances, None, labels, ones, {"verdicts": 300})
    middle = new.probabilities(np.array([0.0, 1.0, 3.0]))
    assert middle == pytest.approx([0.95, 0.5, 0.01], abs=0.1)
    assert (new.light, new.reranker, new.settings) == (None, "", {"verdicts": 300})
    both = PairCalibration("e", old.distance, 4.0, **LIGHT)
    moved = refit(both, distances, new.probabilities(distances), labels, ones, {})
    assert moved.reranker == "r"
    assert refit(both, distances, None, labels, ones, {}).light is None
    assert np.isfinite(first_curve(np.zeros(3))).all()


def test_the_same_verdicts_do_not_count_twice():
    rng = np.random.default_rng(0)
    raw, ones = rng.uniform(-1, 1, 300), np.ones(300)
    labels = rng.random(300) < 1 / (1 + np.exp(-3 * raw))
    trained = calibration(**LIGHT)
    scores, name = trained.light_probabilities(raw), trained.identity(light=True)
    known, found = trained, []
    for _ in range(3):
        old, by_light = start_of(known, name, has_scores=True)
        assert by_light
        known = refit(old, 2 - raw, scores, labels, ones, {})
        found.append((known.identity(light=True), known.identity(light=False)))
    assert found[0] == found[2] != (name, trained.identity(light=False))
    # Pairs that are found by the new one are fitted from it, and those of the first are of another.
    name2 = known.identity(light=True)
    third = refit(known, 2 - raw, known.light_probabilities(raw), labels, ones, {})
    assert start_of(third, name2, has_scores=True)[0].identity(light=True) == name2
    with pytest.raises(UserError, match="got those of another"):
        start_of(third, name, has_scores=True)
    with pytest.raises(UserError, match="expected a column `calibration`"):
        start_of(third, "", has_scores=True)
    assert start_of(known, "", has_scores=False) == (known.before, False)
    assert start_of(trained, "", has_scores=True) == (trained, True)
    # Scores by the distance are no scores of the re-ranker.
    assert start_of(trained, trained.identity(light=False), has_scores=True) == (trained, False)


def verdicts(labels: np.ndarray, weights: np.ndarray) -> Verdicts:
    texts = [str(i) for i in range(2 * len(labels))]
    pairs = np.arange(2 * len(labels)).reshape(-1, 2)
    return Verdicts(LabeledPairs(texts, pairs, labels), None, weights)


def test_too_few_verdicts_or_all_alike_are_refused():
    for labels in (np.ones(30, bool), np.zeros(30, bool), np.arange(10) % 2 == 0):
        given_ = verdicts(labels, np.ones(len(labels)))
        with pytest.raises(UserError, match="expected 20 verdicts or more, of both kinds"):
            recalibrate("e", None, given_, np.arange(len(labels) * 1.0))


@settings(max_examples=30, deadline=None)
@given(st.floats(min_value=1e-300, max_value=1e308), st.integers(0, 39))
def test_any_weights_give_a_calibration_or_a_user_error(weight, place):
    weights = np.ones(40)
    weights[place:] = weight
    labels = np.arange(40) % 3 == 0
    try:
        new, _ = recalibrate("e", None, verdicts(labels, weights), np.linspace(0, 4, 40))
    except UserError:
        assert weight > 1e6
    else:
        assert np.isfinite(new.distance).all()


def test_weights_of_1e308_are_a_user_error():
    given_ = verdicts(np.arange(40) % 2 == 0, np.full(40, 1e308))
    with pytest.raises(UserError, match="weights"):
        recalibrate("e", None, given_, np.linspace(0, 4, 40))
