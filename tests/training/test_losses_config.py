"""The losses of the settings: what each is given, and their weights."""

import functools

import jax
import numpy as np
import pytest

from qpr_jax.losses import contrastive_loss, imitation_loss, sdml_loss, similarities_loss
from qpr_jax.training.batches import Batch
from qpr_jax.training.config import TrainConfig, override
from qpr_jax.training.losses_config import LOSSES, loss_terms

LABELS = np.array([1, 0, 0, 1, 1, 0], np.int32)
CLUSTERS = np.random.default_rng(1).integers(-1, 3, 10).astype(np.int32)
VECTORS = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
QUERIES, CANDIDATES, LEFT, RIGHT = np.split(VECTORS, (8, 18, 24))
TARGETS = np.roll(VECTORS, 1, axis=0)


def losses_of(changes, targets=None, **options):
    """What the losses of the settings give on one device; compiled whole."""
    terms = loss_terms(override(TrainConfig(), changes), **options)
    nothing = np.zeros(0, np.int32)
    targets = np.zeros((len(VECTORS), 0), np.float32) if targets is None else targets
    parts = nothing, nothing, np.zeros(0, np.float32)
    batch = Batch(nothing, (), np.arange(30), CLUSTERS, LABELS, targets, *parts)
    found = jax.jit(lambda vectors: terms(vectors, batch, jax.random.key(3), None))(VECTORS)
    return {name: float(value) for name, value in found.items()}


SDML = {"smoothing": 0.1, "distance": "euc", "prior": "distance", "symmetric": True}


@pytest.mark.parametrize(
    ("name", "changes", "masked"),
    [
        ("sdml", SDML, True),
        ("triplet", {"margin": 3.0, "distance": "euc", "negatives": "hard"}, True),
        ("ranking", {"smoothing": 0.0, "symmetric": True}, False),
        ("contrastive", {"margin": 1.3}, False),
        ("online_contrastive", {"margin": 1.3}, False),
    ],
)
def test_every_setting_reaches_the_loss(name, changes, masked, monkeypatch):
    spec, given = LOSSES[name], {}

    @functools.wraps(spec.fn)
    def recorded(*arrays, **options):
        given.update(options, arrays=arrays)
        return 1.0

    monkeypatch.setitem(LOSSES, name, spec._replace(fn=recorded))
    settings = {f"loss.{setting}": value for setting, value in changes.items()}
    losses_of(settings | {"loss.names": (name,), "loss.mask_own_cluster": masked})
    assert spec.settings == changes.keys()
    assert {setting: given[setting] for setting in changes} == changes
    shapes = [array.shape for array in given["arrays"]]
    assert shapes == ([(8, 5), (10, 5)] if spec.reads == "pairs" else [(6, 5), (6, 5), (6,)])
    if "clusters" in spec.arguments:
        assert (given["clusters"] is not None) == masked


@jax.jit
def weighed():
    return {
        "sdml": sdml_loss(0.5 * QUERIES, 0.5 * CANDIDATES),
        "contrastive": 2 * contrastive_loss(0.5 * LEFT, 0.5 * RIGHT, labels=LABELS),
        "imitation": 3 * imitation_loss(VECTORS, TARGETS),
        "similarities": 1.5 * similarities_loss(VECTORS, TARGETS),
    }


def test_several_losses_are_weighed():
    changes = {"loss.names": "sdml,contrastive", "loss.weights": "1,2", "loss.scale": 0.5}
    changes |= {"teacher.weight": 3.0, "teacher.similarities": 0.5}
    expected = {name: pytest.approx(float(loss)) for name, loss in weighed().items()}
    found = losses_of(changes, TARGETS)
    assert found == expected
    alone = losses_of(changes, TARGETS, imitation_alone=True)
    weights = {"imitation": 3, "similarities": 3}
    assert alone == {name: pytest.approx(found[name] / by) for name, by in weights.items()}
    # Without targets there is no imitation.
    assert losses_of({"teacher.weight": 3.0}).keys() == {"sdml"}
