import numpy as np
import pytest

from qpr_jax.evaluation.bootstrap import mean_interval, rank_scores


def test_the_interval_of_a_mean_is_by_clusters():
    assert mean_interval(np.full(9, 0.25), np.arange(9)) == (0.25, 0.25)
    rng = np.random.default_rng(0)
    values = (rng.random(400) < 0.5).astype(float)
    low, high = mean_interval(values, np.arange(400))
    assert low < values.mean() < high
    # 1.96 standard errors each way
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(400), rel=0.15)
    # The same values four times say no more than once.
    four = np.tile(values, 4), np.tile(np.arange(400), 4)
    assert mean_interval(*four) == pytest.approx((low, high))


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
