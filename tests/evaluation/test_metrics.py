import numpy as np
import pytest

from qpr_jax.evaluation.metrics import mean_interval, rank_scores, reliability


def test_the_interval_of_a_mean_is_by_clusters():
    assert mean_interval(np.full(9, 0.25), np.arange(9)).tolist() == [0.25, 0.25]
    rng = np.random.default_rng(0)
    values = (rng.random(400) < 0.5).astype(float)
    low, high = mean_interval(values, np.arange(400))
    assert low < values.mean() < high
    # 1.96 standard errors each way
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(400), rel=0.15)
    # The same values four times say no more than once.
    four = np.tile(values, 4), np.tile(np.arange(400), 4)
    assert mean_interval(*four) == pytest.approx((low, high))
    counts = rng.integers(1, 9, 400)
    repeated = np.repeat(values, counts), np.repeat(np.arange(400), counts)
    assert mean_interval(values, np.arange(400), counts) == pytest.approx(mean_interval(*repeated))


def test_scores_of_ranks_and_their_differences():
    ranks = {
        "test_clusters": np.array([0, 1, 1]),
        "test_pairs": np.array([2, 1, 1]),
        "test_exact": np.array([1, 4, 0], np.uint8),
        "test_index": np.array([1, 20, 2], np.uint8),
    }
    mean, low, high = rank_scores(ranks, "test", "exact", "query")
    np.testing.assert_allclose(mean, [1 / 3, 2 / 3, (1 + 1 / 4) / 3])
    assert (low <= mean).all()
    assert (mean <= high).all()
    np.testing.assert_allclose(
        rank_scores(ranks, "test", "exact", "pair")[0], [1 / 2, 3 / 4, (2 + 1 / 4) / 4]
    )
    found = rank_scores(ranks, "test", "index", "query", minus="exact")
    np.testing.assert_allclose(found[0], [0, 0, (1 / 20 + 1 / 2 - 1 / 4) / 3])


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
