"""Probabilities fitted to verdicts."""

import dataclasses

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.evaluation.reliability import reliability
from qpr_jax.reranking.pair_calibration import PairCalibration, same_calibration
from qpr_jax.reranking.recalibration import cross_validate, first_curve, fit_map, refit, start_of

CURVE = np.array([[-4.0, 0.0], [0.0, 1.0]])
RNG = np.random.default_rng(0)


def wrong_by_a_shift(count):
    """Old probabilities, and labels by those of a logit two lower."""
    old = RNG.uniform(0.02, 0.98, count)
    true = 1 / (1 + np.exp(2) * (1 - old) / old)
    return old, true, RNG.random(count) < true


@pytest.mark.parametrize(("count", "error"), [(200, 0.06), (5000, 0.03)])
def test_a_map_corrects_a_shift(count, error):
    old, true, labels = wrong_by_a_shift(count)
    ones = np.ones(count)
    new = fit_map(old, labels, ones)(old)
    assert abs(new - true).mean() < error
    held = cross_validate(old, labels, ones, np.arange(count))
    before, after = (reliability(p, labels) for p in (old, held))
    assert after["ece"] < before["ece"] / 2
    assert after["brier"] < before["brier"]


def test_a_verdict_counts_as_many_pairs_as_it_stands_for():
    old, labels = np.full(40, 0.5), np.arange(40) % 2 == 0
    weights = np.where(labels, 1.0, 9.0)
    assert fit_map(old, labels, weights)(old[:1]) == pytest.approx(0.1, abs=0.02)


def test_curves_are_fitted_and_stay_probabilities():
    distances = RNG.uniform(0, 4, 300)
    labels = RNG.random(300) < 1 / (1 + np.exp(3 * (distances - 1)))
    old = PairCalibration("e", first_curve(distances), 4.0)
    new = refit(old, distances, None, labels, np.ones(300), {"verdicts": 300})
    middle = new.probabilities(np.array([0.0, 1.0, 3.0]))
    assert middle == pytest.approx([0.95, 0.5, 0.01], abs=0.1)
    assert (new.light, new.reranker, new.settings) == (None, "", {"verdicts": 300})
    light = np.array([[-1.0, 1.0], [0.0, 1.0]])
    both = PairCalibration("e", old.distance, 4.0, light, "r")
    scores = new.probabilities(distances)
    moved = refit(both, distances, scores, labels, np.ones(300), {})
    assert moved.reranker == "r"
    assert moved.light_probabilities(np.array([0.0])) == pytest.approx(0.5, abs=0.1)
    assert refit(both, distances, None, labels, np.ones(300), {}).light is None


def test_the_same_verdicts_give_the_same_calibration_again():
    raw, ones = RNG.uniform(-1, 1, 300), np.ones(300)
    labels = RNG.random(300) < 1 / (1 + np.exp(-3 * raw))
    trained = PairCalibration("e", CURVE, 4.0, np.array([[-1.0, 1.0], [0.0, 1.0]]), "r")
    scores, name = trained.light_probabilities(raw), trained.identity(light=True)
    known, found = trained, []
    for _ in range(3):
        old, by_light = start_of(known, name, has_scores=True)
        assert by_light
        known = refit(old, 2 - raw, scores, labels, ones, {})
        found.append(known)
    assert same_calibration(found[0], found[2])
    assert not same_calibration(found[0], trained)
    # Pairs that are found by the new one are fitted from it, and those of the first are of another.
    name2 = known.identity(light=True)
    old, _ = start_of(known, name2, has_scores=True)
    assert old is known
    third = refit(old, 2 - raw, known.light_probabilities(raw), labels, ones, {})
    assert start_of(third, name2, has_scores=True)[0].identity(light=True) == name2
    with pytest.raises(UserError, match="got those of another"):
        start_of(third, name, has_scores=True)


def test_scores_of_a_calibration_that_nothing_names():
    light = np.array([[-1.0, 1.0], [0.0, 1.0]])
    trained = PairCalibration("e", CURVE, 4.0, light, "r")
    assert start_of(trained, "", has_scores=True) == (trained, True)
    changed = dataclasses.replace(trained, light=light / 2, before=trained)
    with pytest.raises(UserError, match="expected a column `calibration`"):
        start_of(changed, "", has_scores=True)
    assert start_of(changed, "", has_scores=False) == (trained, False)
    # Scores by the distance are no scores of the re-ranker.
    assert start_of(trained, trained.identity(light=False), has_scores=True) == (trained, False)


def test_too_few_verdicts_or_all_alike_are_an_error():
    old = PairCalibration("e", first_curve(np.arange(30.0)), 4.0)
    for labels in (np.ones(30, bool), np.zeros(30, bool), np.arange(10) % 2 == 0):
        with pytest.raises(UserError, match="expected 20 verdicts or more, of both kinds"):
            refit(old, np.arange(len(labels) * 1.0), None, labels, np.ones(len(labels)), {})


def test_equal_distances_give_a_curve():
    assert np.isfinite(first_curve(np.zeros(3))).all()
