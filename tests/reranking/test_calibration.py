"""Probabilities of found pairs: their curves, and the fit to verdicts."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from qpr_jax.data.pairs import LabeledPairs, Verdicts
from qpr_jax.errors import UserError
from qpr_jax.reranking.calibration import (
    PairCalibration,
    calibrate,
    threshold_of_precision,
)
from qpr_jax.reranking.recalibration import recalibrate
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


def verdicts(labels, weights=None, scores=None, scored_by="") -> Verdicts:
    texts = [str(i) for i in range(2 * len(labels))]
    pairs = np.arange(2 * len(labels)).reshape(-1, 2)
    weights = np.ones(len(labels)) if weights is None else weights
    return Verdicts(LabeledPairs(texts, pairs, labels), scores, weights, scored_by)


@pytest.mark.parametrize(("count", "error"), [(200, 0.06), (5000, 0.03)])
def test_verdicts_correct_a_shift(count, error):
    """True probabilities are of a logit two lower; 5,000 verdicts are fitted by isotonic levels."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.02, 0.98, count)
    true = 1 / (1 + np.exp(2) * (1 - p) / p)
    old = PairCalibration("e", np.array([[-1.0, 0.0], [0.0, 1.0]]), 1.0)
    new, facts = recalibrate("e", old, verdicts(rng.random(count) < true), 1 - p)
    assert abs(new.probabilities(1 - p) - true).mean() < error
    assert facts["verdicts"] == count
    assert facts["after"]["ece"] < facts["before"]["ece"] / 2
    assert facts["after"]["brier"] < facts["before"]["brier"]


def test_a_verdict_counts_as_many_pairs_as_it_stands_for():
    labels = np.arange(40) % 2 == 0
    given = verdicts(labels, np.where(labels, 1.0, 9.0))
    old = PairCalibration("e", np.array([[-1.0, 0.0], [0.0, 1.0]]), 1.0)
    new, _ = recalibrate("e", old, given, np.full(40, 0.5))
    assert new.probabilities(np.array([0.5])) == pytest.approx(0.1, abs=0.02)


def test_an_encoder_without_a_calibration_gets_one():
    rng = np.random.default_rng(0)
    distances = rng.uniform(0, 4, 300)
    labels = rng.random(300) < 1 / (1 + np.exp(3 * (distances - 1)))
    new, facts = recalibrate("e", None, verdicts(labels), distances)
    middle = new.probabilities(np.array([0.0, 1.0, 3.0]))
    assert middle == pytest.approx([0.95, 0.5, 0.01], abs=0.1)
    assert (new.light, new.reranker, facts["before"]) == (None, "", None)
    equal, _ = recalibrate("e", None, verdicts(labels), np.ones(300))
    assert np.isfinite(equal.distance).all()


def test_the_same_verdicts_do_not_count_twice():
    rng = np.random.default_rng(0)
    raw = rng.uniform(-1, 1, 300)
    labels = rng.random(300) < 1 / (1 + np.exp(-3 * raw))
    trained = calibration(**LIGHT)

    def names(known):
        return known.identity(light=True), known.identity(light=False)

    def fit(known, scored, scored_by):
        given = verdicts(labels, scores=scored.light_probabilities(raw), scored_by=scored_by)
        return recalibrate("an encoder", known, given, 2 - raw)[0]

    first = fit(trained, trained, names(trained)[0])
    assert first.reranker == "r"
    assert names(fit(first, trained, names(trained)[0])) == names(first) != names(trained)
    assert names(fit(trained, trained, "")) == names(first)  # of the only one there is
    # Pairs that are found by the new one are fitted from it, and those of the first are of another.
    third = fit(first, first, names(first)[0])
    assert names(third.before) == names(first)
    with pytest.raises(UserError, match="got those of another"):
        fit(third, trained, names(trained)[0])
    with pytest.raises(UserError, match="expected a column `calibration`"):
        fit(third, first, "")
    # Without scores of the re-ranker only the distances are fitted, from before any verdict.
    plain, _ = recalibrate("an encoder", first, verdicts(labels), 2 - raw)
    assert (plain.light, names(plain)[1]) == (None, names(first)[1])
    assert fit(trained, trained, names(trained)[1]).light is None


@pytest.mark.parametrize(
    "labels", [np.ones(30, bool), np.zeros(30, bool), np.arange(10) % 2 == 0], ids=str
)
def test_too_few_verdicts_or_all_alike_are_refused(labels):
    with pytest.raises(UserError, match="expected 20 verdicts or more, of both kinds"):
        recalibrate("e", None, verdicts(labels), np.arange(len(labels) * 1.0))


@settings(max_examples=30, deadline=None)
@given(st.floats(min_value=1e-300, max_value=1e308), st.integers(0, 39))
@example(1e308, 0)
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
