"""A loss that a user registers, as in examples/custom_loss.py."""

import pathlib
import runpy

import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax import LossSpec, UserError, load_config, register_loss
from qpr_jax.training.checks import validate
from qpr_jax.training.losses_config import LOSSES
from tests.losses.cases import check, over_devices, pairs
from tests.refused import check_refused

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture
def _hinge():
    """`hinge` is not registered before the test, nor after it."""
    assert "hinge" not in LOSSES
    yield
    LOSSES.pop("hinge", None)


@pytest.fixture
def hinge_loss(_hinge):
    """The loss of examples/custom_loss.py, registered by its code."""
    return runpy.run_path(str(ROOT / "examples" / "custom_loss.py"))["hinge_loss"]


def test_the_loss_of_the_example(hinge_loss):
    assert LOSSES["hinge"].fn is hinge_loss
    assert LOSSES["hinge"].settings == {"margin"}
    line = jnp.array([[0.0], [2.0]])
    # Distances 0, 4 and 4, 0, and a margin of 5: 5 + 0 - 4 for each of the two negatives.
    assert float(hinge_loss(line, line, margin=5.0)) == 1
    one, eight = (over_devices(hinge_loss, count, pairs(16, 16, 5)[:2]) for count in (1, 8))
    assert one[0] > 0
    check(eight, (float(one[0]), *map(np.asarray, one[1])))


@pytest.mark.usefixtures("hinge_loss")
def test_settings_may_name_it():
    config = load_config("quora_sdml", {"loss.names": "hinge", "loss.margin": 0.7})
    validate(config)
    config.loss.names = ("hing",)
    with pytest.raises(UserError, match="or hinge, got"):
        validate(config)


WRONG = [
    ("sdml", {}, "`name` of a loss: expected letters, digits and _, and none of contrastive, "),
    ("a,b", {}, "got 'a,b'"),
    ("hinge", {"reads": "targets"}, "`reads` of a loss: expected pairs or labeled, got 'targets'"),
]


@pytest.mark.usefixtures("_hinge")
def test_what_is_no_loss_is_refused():
    plain = {"fn": lambda: None, "reads": "pairs"}
    check_refused(lambda name, given: register_loss(name, LossSpec(**plain | given)), *WRONG)
    assert "hinge" not in LOSSES
