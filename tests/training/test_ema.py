import numpy as np
import pytest

from qpr_jax.training.trainer import EMA_EVERY, ema_weight


@pytest.mark.parametrize("every", [7, 10, 35, 215])
def test_the_average_is_of_all_steps_so_far_and_then_forgets(every):
    """Of the number of the step itself, looked at as the loop does."""
    horizon, average = 50, -1e6  # what it begins with counts nothing
    for step in range(1, 1001):
        if step % EMA_EVERY == 0 or step % every == 0:
            average += ema_weight(step, lambda at: at % every == 0, horizon) * (step - average)
        if step == 50:
            assert 25 < average < 32  # the plain mean of steps 1 to 50, seen every few
    assert 1000 - horizon - 5 < average < 1000 - horizon + 15


def test_a_run_shorter_than_the_interval_keeps_its_last_weights():
    assert ema_weight(9, lambda at: at == 9, 50) == 1
    np.testing.assert_allclose(ema_weight(12, lambda at: at == 12, 50), 2 / 12)
