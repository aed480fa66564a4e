import numpy as np
import pytest

from qpr_jax.evaluation.reliability import reliability


def test_by_hand():
    p, y = np.array([0.1, 0.3, 0.7, 0.9]), np.array([0, 1, 1, 1])
    found = reliability(p, y, bins=2)
    assert found["curve"] == [pytest.approx([0.2, 0.5, 2]), pytest.approx([0.8, 1, 2])]
    assert found["ece"] == pytest.approx((0.3 + 0.2) / 2)
    assert found["brier"] == pytest.approx((0.01 + 0.49 + 0.09 + 0.01) / 4)
    assert (found["base_rate"], found["base_brier"]) == (0.75, 0.1875)


def test_order_does_not_matter_and_a_weight_is_a_count():
    rng = np.random.default_rng(0)
    p = rng.integers(0, 5, 300) / 4
    y = rng.random(300) < p
    order = rng.permutation(300)
    expected = reliability(p, y)
    assert reliability(p[order], y[order])["ece"] == pytest.approx(expected["ece"])
    assert expected["ece"] < 0.06
    weights = rng.integers(1, 3, 300)
    weighted = reliability(p, y, weights)
    repeated = reliability(np.repeat(p, weights), np.repeat(y, weights))
    assert weighted["brier"] == pytest.approx(repeated["brier"])
    assert weighted["ece"] == pytest.approx(repeated["ece"], abs=0.01)
    assert sum(weight for *_, weight in weighted["curve"]) == weights.sum()
