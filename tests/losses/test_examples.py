"""The losses of `examples/`: against their formulas in float64, registered, in settings."""

import functools
import pathlib
import runpy

import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import softmax

from examples import losses
from qpr_jax import UserError, load_config, register_loss
from qpr_jax.losses import batch_loss
from qpr_jax.training.objectives import LOSSES, settings_of
from qpr_jax.training.run import validate
from tests.losses.cases import check, over_devices, pairs
from tests.losses.references import cosines, distances_of, divergence, evaluate, negatives_of
from tests.refused import check_refused

ROOT = pathlib.Path(__file__).parent.parent.parent
RNG = np.random.default_rng(3)
TEACHER = RNG.normal(size=(16, 6)), RNG.normal(size=(24, 6))
OWN = np.eye(16, 24)


def multi_positive(x, y, negative):
    shares = ~negative / (~negative).sum(axis=1, keepdims=True)
    return divergence(0.7 * shares + 0.3 / len(y), -distances_of(x, y))


def debiased(x, y, negative):
    powers, count = jnp.exp(20 * cosines(x, y)), negative.sum(axis=1)
    own, others = powers.diagonal(), jnp.where(negative, powers, 0).sum(axis=1)
    mean = (others / count - 0.001 * own) / 0.999
    return -jnp.log(own / (own + count * jnp.maximum(mean, np.exp(-20)))).mean()


def sigmoid(x, y, negative):
    logits = 10 * cosines(x, y) - 10
    others = jnp.where(negative, jnp.log1p(jnp.exp(logits)), 0)
    return (jnp.log1p(jnp.exp(-logits.diagonal())) + others.sum(axis=1)).mean()


def guided(x, y, negative):
    guide = cosines(*TEACHER)
    kept = (OWN > 0) | negative & (guide <= guide.diagonal()[:, None])
    return divergence(OWN, jnp.where(kept, 20 * cosines(x, y), -jnp.inf))


def teacher_prior(x, y, negative):
    spread = softmax(jnp.where(negative, cosines(*TEACHER) / 0.05, -jnp.inf), axis=1)
    logits = jnp.where((OWN > 0) | negative, -distances_of(x, y), -jnp.inf)
    return divergence(0.7 * OWN + 0.3 * spread, logits)


@pytest.mark.parametrize("formula", [multi_positive, debiased, sigmoid, guided, teacher_prior])
def test_a_loss_is_its_formula_on_any_number_of_devices(formula):
    taught = formula in (guided, teacher_prior)

    def loss(x, y, clusters, *teacher, axis_name):
        loss = getattr(losses, f"{formula.__name__}_loss")
        teacher = teacher if taught else None
        return batch_loss(loss, x, y, clusters, teacher=teacher, axis_name=axis_name)

    x, y, clusters = pairs(16, 24, 8)
    expected = evaluate(formula, x, y, negatives_of(16, 24, clusters))
    for devices in (1, 8):
        check(over_devices(loss, devices, (x, y, clusters, *TEACHER)), expected, 2e-5)


def test_a_loss_that_reads_a_teacher_needs_one():
    config = load_config("quora_sdml", {"loss.names": "guided"})
    with pytest.raises(UserError, match="a teacher, and there is none"):
        validate(config)
    validate(load_config("quora_sdml", {"loss.names": "guided", "teacher.model": "minilm"}))


@pytest.fixture
def hinge_loss():
    """The loss of examples/custom_loss.py, registered by its code until the end of the test."""
    yield runpy.run_path(str(ROOT / "examples" / "custom_loss.py"))["hinge_loss"]
    del LOSSES["hinge"]


def test_the_loss_of_the_example(hinge_loss):
    assert LOSSES["hinge"] is hinge_loss
    assert settings_of("hinge") == ["margin"]
    line = jnp.array([[0.0], [2.0]])
    # Distances 0, 4 and 4, 0, and a margin of 5: 5 + 0 - 4 for each of the two negatives.
    found = hinge_loss(line, line, jnp.arange(2), margin=5.0)
    np.testing.assert_allclose(found, [1, 1], rtol=1e-5)
    loss = functools.partial(batch_loss, hinge_loss)
    one, eight = (over_devices(loss, count, pairs(16, 24, 5)) for count in (1, 8))
    assert one[0] > 0
    check(eight, (float(one[0]), *map(np.asarray, one[1])))
    # Both directions of a loss that knows nothing of them.
    x, y, clusters = pairs(16, 24, 5)
    both = over_devices(functools.partial(loss, symmetric=True), 8, (x, y, clusters))
    back = over_devices(loss, 1, (y[:16], x, clusters[:16]))
    assert float(both[0]) == pytest.approx(float(one[0] + back[0]) / 2, rel=1e-6)
    np.testing.assert_allclose(both[1][0], (one[1][0] + back[1][1]) / 2, atol=1e-6)
    # Settings may name it.
    config = load_config("quora_sdml", {"loss.names": "hinge", "loss.margin": 0.7})
    validate(config)
    config.loss.names = ("hing",)
    with pytest.raises(UserError, match="or hinge, got"):
        validate(config)


def test_names_that_no_loss_may_have_are_refused():
    expected = "`name` of a loss: expected letters, digits and _, and none of contrastive, "
    check_refused(lambda name: register_loss(name, print), ("sdml", expected), ("a,b", "got 'a,b'"))
