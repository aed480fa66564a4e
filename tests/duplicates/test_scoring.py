"""The pairs that count: their order, a precision, and many of them in little memory."""

import dataclasses

import numpy as np
import pytest

from qpr_jax.duplicates.scoring import ScoredPairs
from qpr_jax.duplicates.search import sorted_parts
from qpr_jax.index.closest_pairs import LastPair
from qpr_jax.index.mining import Pairs
from qpr_jax.reranking.pair_calibration import PairCalibration

CURVE = np.array([[-4.0, 0.0], [0.0, 1.0]])


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    first = rng.integers(0, 500, 3000)
    found = Pairs(first, first + 1 + rng.integers(0, 50, 3000), rng.random(3000, np.float32) * 4)
    parts = [Pairs(*(v[p] for v in found)) for p in np.array_split(np.arange(3000), 4)]
    return ScoredPairs(lambda: iter(parts), np.arange(600), PairCalibration("e", CURVE, 4.0))


def joined(parts):
    return [np.concatenate(values) for values in zip(*parts, strict=True)]


@pytest.mark.parametrize("calibrated", [True, False])
def test_pairs_come_sorted_in_parts_that_fit(pairs, calibrated):
    if not calibrated:
        pairs = ScoredPairs(pairs.found, pairs.spellings)
    whole = joined(sorted_parts(pairs, 3000, 3000))
    parts = [*sorted_parts(pairs, 3000, 500)]
    assert 6 < len(parts) < 14
    assert max(len(part.first) for part in parts) <= 500
    for a, b in zip(whole, joined(parts), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (np.diff(whole[3]) >= 0).all()


def test_equal_pairs_are_cut_where_they_do_not_fit(pairs):
    rng = np.random.default_rng(1)
    keys = rng.permutation(3000)
    found = [Pairs(k // 60, 50 + k % 60, np.zeros(len(k))) for k in np.array_split(keys, 5)]
    same = dataclasses.replace(pairs, found=lambda: iter(found))
    parts = [*sorted_parts(same, 3000, 500)]
    assert max(len(part.first) for part in parts) <= 500
    first, second, *_ = joined(parts)
    np.testing.assert_array_equal(60 * first + second - 50, np.arange(3000))


@pytest.mark.parametrize("precision", [0.6, 0.9, 0.99])
def test_a_precision_is_of_the_lowest_threshold_that_has_it(pairs, precision):
    found = pairs.with_precision(precision)
    assert found.mean_probability() == pytest.approx(precision, abs=1e-3)
    assert found.mean_probability() >= precision
    assert found.count() < pairs.count() == 3000


def test_entries_of_one_text_have_probability_one(pairs):
    same = ScoredPairs(pairs.found, np.zeros(600, np.int64), pairs.calibration)
    assert same.mean_probability() is None
    assert same.with_precision(1).count() == 3000
    assert ScoredPairs(pairs.found, pairs.spellings).mean_probability() is None


def test_pairs_up_to_the_last_one_count(pairs):
    whole = joined(pairs.parts())
    tied = dataclasses.replace(
        pairs, found=lambda: iter([Pairs(whole[0], whole[1], whole[3] // 1)])
    )
    (part,) = tied.parts()
    order = np.lexsort((part.second, part.first, part.distances))[:1000]
    last = LastPair(*(values[order[-1]] for values in (part.distances, part.first, part.second)))
    (found,) = dataclasses.replace(tied, last=last).parts()
    expected = part.some(np.sort(order))
    assert {*zip(*found, strict=True)} == {*zip(*expected, strict=True)}
    assert dataclasses.replace(tied, last=LastPair(1.0)).count() == (part.distances <= 1).sum()
