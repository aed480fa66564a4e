"""Learning rates."""

import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.config import TrainConfig, override
from qpr_jax.training.train_step import make_schedule


def rates(done, total=100, imitation=0, **changes):
    names = {name: f"optimizer.{name}" for name in ("warmup_steps", "learning_rate_decay")}
    changes = {names.get(name, name): value for name, value in changes.items()}
    settings = override(TrainConfig(), {"optimizer.learning_rate": 0.5} | changes)
    return np.asarray(make_schedule(settings, total, imitation=imitation)(jnp.asarray(done)))


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("sqrt", 4.0), ("linear", 16.0)])
def test_the_rate_grows_with_the_batch_as_the_setting_says(scaling, factor):
    changes = {"optimizer.learning_rate_scaling": scaling}
    assert rates(7, batch_size=8192, **changes) == 0.5 * factor
    assert rates(7, batch_size=512, **changes) == 0.5


def test_warm_up_rises_in_even_steps_to_the_rate_and_decay_ends_at_0():
    found = rates([0, 1, 3, 4, 90], warmup_steps=4)
    np.testing.assert_allclose(found, [0.125, 0.25, 0.5, 0.5, 0.5])
    found = rates([0, 10, 50, 99, 100, 101], warmup_steps=11, learning_rate_decay="linear")
    np.testing.assert_allclose(found, [0.5 / 11, 0.45, 0.25, 0.005, 0, 0], rtol=1e-5)
    with pytest.raises(UserError, match=r"`optimizer.warmup_steps`: .* 100 .*, got 101"):
        rates(0, warmup_steps=101)


def test_imitation_has_its_own_batch_and_decay():
    sizes = {"batch_size": 8192, "teacher.batch_size": 2048}
    scaling = {"optimizer.learning_rate_scaling": "sqrt"}
    found = rates([0, 20, 40, 70], imitation=40, learning_rate_decay="linear", **sizes, **scaling)
    np.testing.assert_allclose(found, [1, 0.5, 2, 1], rtol=1e-6)


def test_late_decay_falls_in_the_last_third_and_leaves_the_first_steps_as_they_are():
    found = rates([0, 59, 60, 75, 90], total=90, learning_rate_decay="late")
    np.testing.assert_allclose(found, [0.5, 0.5, 0.5, 0.25, 0], rtol=1e-5)
    longer = rates([0, 59, 60, 75, 90], total=180, learning_rate_decay="late")
    np.testing.assert_allclose(longer, [0.5] * 5)
