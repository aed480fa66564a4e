import numpy as np
import pytest

from qpr_jax.evaluation.bootstrap import mean_interval


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
