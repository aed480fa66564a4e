"""Which pairs are asked, and what labels imply: against the truth in simulated reviews."""

import numpy as np
import pytest

from qpr_jax.duplicates.pairs import SWEPT
from qpr_jax.duplicates.sampling import (
    EACH,
    choose_threshold,
    make_strata,
    precision_at,
    rank_strata,
)


@pytest.fixture(scope="module")
def population():
    """Probabilities of 6,000 pairs, and truth drawn by them."""
    rng = np.random.default_rng(0)
    sure, unsure = rng.beta(4, 0.6, 3000), rng.beta(1, 1.5, 3000)
    probabilities = np.concatenate([sure, unsure]).clip(0.001, 0.999)
    return probabilities, rng.random(6000) < probabilities


def review(probabilities, truth, labels, precision, seed):
    """The estimate after so many labels, and the true precision at its threshold."""
    strata = make_strata(probabilities)
    stratum = strata.of(probabilities)
    shuffled = np.random.default_rng(seed).permutation(len(truth))
    waiting = [iter(shuffled[stratum[shuffled] == h]) for h in range(len(strata.sizes))]
    counts = np.zeros((2, len(strata.sizes)), np.int64)
    for _ in range(labels):
        chosen = rank_strata(strata, counts[1], counts[0], precision)[0]
        counts[int(truth[next(waiting[chosen])]), chosen] += 1
    found = choose_threshold(strata, counts[1], counts[0], precision)
    return found, truth[probabilities >= found.threshold].mean()


def test_few_and_equal_probabilities():
    for probabilities in [[0.5], [0.1, 1.0], [0.7] * 50, [1.0] * 5]:
        strata = make_strata(np.array(probabilities))
        none = np.zeros(len(strata.sizes), np.int64)
        assert sorted(rank_strata(strata, none, none, 0.9)) == [*range(len(strata.sizes))]
        yes = strata.sizes.astype(np.int64)  # all judged
        found = choose_threshold(strata, yes, none, 0.9)
        assert found.precision > 0.9
        assert found.share == 1
        assert found.pairs == len(probabilities)
        assert found.threshold == min(probabilities)
        assert found.low == pytest.approx(found.precision)


def test_a_stratum_whose_pairs_are_all_labeled_is_asked_last():
    strata = make_strata(np.array([0.9999] * 40 + [0.5]))
    assert rank_strata(strata, np.array([39, 1]), np.array([0, 0]), 0.9).tolist() == [0, 1]


def test_an_estimate_does_not_contradict_its_labels(population):
    rng, strata = np.random.default_rng(0), make_strata(population[0])
    for share in (0.02, 0.3, 0.9, 1.0):
        judged = rng.binomial(strata.sizes.astype(int), share)
        yes = rng.binomial(judged, rng.random(len(judged)))
        estimates = precision_at(strata, yes, judged - yes)[0] * np.cumsum(strata.sizes)
        assert (estimates >= np.cumsum(yes) - 1e-9).all()
        assert (estimates <= np.cumsum(strata.sizes - (judged - yes)) + 1e-9).all()


def test_each_band_is_asked_first(population):
    strata = make_strata(population[0])
    counts = np.zeros((2, len(strata.sizes)), np.int64)
    band = np.searchsorted(SWEPT, strata.lowest, side="right")
    for _ in range(EACH * (len(SWEPT) + 1)):
        counts[0, rank_strata(strata, counts[1], counts[0], 0.9)[0]] += 1
    assert np.bincount(band, counts[0]).tolist() == [EACH] * (len(SWEPT) + 1)


def test_the_lowest_threshold_with_the_precision_is_recommended(population):
    """However few pairs it keeps; that of the best F1 where no threshold has the precision."""
    strata, rng = make_strata(population[0]), np.random.default_rng(0)
    for precision in (0.3, 0.6, 0.8, 0.9, 0.97, 1.0):
        judged = rng.binomial(strata.sizes.astype(int), 0.3)
        yes = rng.binomial(judged, np.linspace(rng.random(), rng.random(), len(judged)))
        estimates = precision_at(strata, yes, judged - yes)[0]
        found = choose_threshold(strata, yes, judged - yes, precision)
        last = int((strata.lowest >= found.threshold).sum()) - 1
        assert found.precision == estimates[last]
        assert found.low <= found.precision <= found.high
        if found.precision >= precision:
            assert (estimates[last + 1 :] < precision).all()
        else:
            assert (estimates < precision).all()
    few = make_strata(np.repeat([0.99, 0.5], [2, 60]))
    found = choose_threshold(few, np.array([2, 24]), np.array([0, 36]), 0.9)
    assert (found.pairs, found.share, found.precision) == (2, pytest.approx(1 / 13), 1)


@pytest.mark.parametrize("labels", [1, 5, 10, 20, 40])
def test_few_labels_recommend_no_threshold_by_the_fit_alone(labels):
    """The fit says that pairs at the top are right; of these, three in ten are."""
    rng = np.random.default_rng(0)
    probabilities = rng.uniform(0.2, 0.999, 400)
    truth = rng.random(400) < 0.3
    for seed in range(10):
        found, _ = review(probabilities, truth, labels, 0.9, seed)
        assert found.precision < 0.8


def test_all_labels_give_the_true_precision(population):
    probabilities, truth = population
    strata = make_strata(probabilities)
    stratum = strata.of(probabilities)
    yes = np.bincount(stratum, truth).astype(np.int64)
    no = np.bincount(stratum, ~truth).astype(np.int64)
    estimates, errors = precision_at(strata, yes, no)
    true = [truth[probabilities >= low].mean() for low in strata.lowest]
    np.testing.assert_allclose(estimates, true, atol=0.005)
    assert errors.max() < 1e-9


def test_the_precision_is_right_although_probabilities_are_wrong(population):
    """Few draws, so the bounds leave room."""
    for scale, shift in [(1, 0), (1, 1), (0.5, -1), (2, 0)]:
        probabilities, truth = population
        odds = np.exp(shift) * (probabilities / (1 - probabilities)) ** scale
        wrong = odds / (1 + odds)
        found = [review(wrong, truth, 120, 0.85, seed) for seed in range(6)]
        errors = np.array([each.precision - true for each, true in found])
        assert abs(errors.mean()) < 0.025
        assert np.abs(errors).mean() < 0.03
        assert sum(each.low <= true <= each.high for each, true in found) >= 4
        assert all(each.precision >= 0.85 for each, _ in found)


def test_a_precision_that_no_threshold_has(population):
    probabilities, _ = population
    truth = np.random.default_rng(1).random(len(probabilities)) < 0.5
    found, true = review(probabilities, truth, 100, 0.9, 0)
    assert found.share > 0.8  # the best F1: half of them are right at any threshold
    assert abs(found.precision - true) < 0.15
    assert found.labels == 100
