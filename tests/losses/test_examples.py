"""The losses of `examples/losses.py`, against their formulas row by row in float64."""

import numpy as np
import pytest

from examples import losses
from qpr_jax import UserError, load_config
from qpr_jax.training.checks import validate
from tests.losses.cases import over_devices, pairs
from tests.losses.references import as_float64, negatives_of, unit

RNG = np.random.default_rng(3)
TEACHER = RNG.normal(size=(16, 6)), RNG.normal(size=(24, 6))
SCALE = 20.0


def softmax(logits):
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def divergence(target, logits):
    known = target > 0
    return (target * (np.log(np.where(known, target, 1)) - np.log(softmax(logits))))[known].sum()


def cosines(x, y):
    return unit(x)[0] @ unit(y)[0].T


def multi_positive(i, x, y, clusters):
    positive = ~negatives_of(i, len(y), clusters)
    target = 0.7 * positive / positive.sum() + 0.3 / len(y)
    return divergence(target, -((x[i] - y) ** 2).sum(axis=1))


def debiased(i, x, y, clusters):
    row, negative = SCALE * cosines(x, y)[i], negatives_of(i, len(y), clusters)
    mean = (np.exp(row[negative]).mean() - 0.001 * np.exp(row[i])) / 0.999
    rest = negative.sum() * max(mean, np.exp(-SCALE))
    return -np.log(np.exp(row[i]) / (np.exp(row[i]) + rest))


def sigmoid(i, x, y, clusters):
    row, negative = 10 * cosines(x, y)[i] - 10, negatives_of(i, len(y), clusters)
    return np.log1p(np.exp(-row[i])) + np.log1p(np.exp(row[negative])).sum()


def guided(i, x, y, clusters):
    row, guide = SCALE * cosines(x, y)[i], cosines(*TEACHER)[i]
    kept = negatives_of(i, len(y), clusters) & (guide <= guide[i])
    kept[i] = True
    return -np.log(np.exp(row[i]) / np.exp(row[kept]).sum())


def teacher_prior(i, x, y, clusters):
    negative = negatives_of(i, len(y), clusters)
    target = np.zeros(len(y))
    target[negative] = 0.3 * softmax(cosines(*TEACHER)[i][negative] / 0.05)
    target[i] = 0.7
    kept = negative | (np.arange(len(y)) == i)
    return divergence(target[kept], -((x[i] - y[kept]) ** 2).sum(axis=1))


@pytest.mark.parametrize("rows", [multi_positive, debiased, sigmoid, guided, teacher_prior])
def test_a_loss_is_its_formula_on_any_number_of_devices(rows):
    taught = rows in (guided, teacher_prior)

    def loss(x, y, clusters, *teacher, axis_name):
        options = {"teacher": teacher} if taught else {}
        fn = getattr(losses, f"{rows.__name__}_loss")
        return fn(x, y, clusters=clusters, axis_name=axis_name, **options)

    x, y, clusters = pairs(16, 24, 8)
    expected = np.mean([rows(i, *as_float64(x, y), clusters) for i in range(16)])
    for devices in (1, 8):
        found, gradients = over_devices(loss, devices, (x, y, clusters, *TEACHER))
        assert found == pytest.approx(expected, rel=1e-5)
        assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_a_loss_that_reads_a_teacher_needs_one():
    config = load_config("quora_sdml", {"loss.names": "guided"})
    with pytest.raises(UserError, match="a teacher, and there is none"):
        validate(config)
    validate(load_config("quora_sdml", {"loss.names": "guided", "teacher.model": "minilm"}))
