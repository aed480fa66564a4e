import functools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.losses import (
    contrastive_loss,
    imitation_loss,
    online_contrastive_loss,
    ranking_loss,
    sdml_loss,
    similarities_loss,
    triplet_loss,
)
from qpr_jax.training.batches import Batch
from qpr_jax.training.config import TrainConfig, override
from qpr_jax.training.losses_config import loss_terms

LABELS = np.array([1, 0, 0, 1, 1, 0], np.int32)
PARTS = (8, 10, 6, 6)


@pytest.fixture(scope="module")
def vectors():
    """Queries, candidates, and both sides of labelled pairs, at one row after the other."""
    rng = np.random.default_rng(0)
    queries, left = (rng.normal(size=(n, 5)).astype(np.float32) for n in (8, 6))
    parts = [queries, np.concatenate([queries, queries[:2]]), left, left]
    noise = [1.2 * rng.normal(size=part.shape) for part in parts]
    return np.concatenate(
        [part + (i % 2) * noise[i] for i, part in enumerate(parts)], dtype=np.float32
    )


@pytest.fixture(scope="module")
def clusters():
    return np.random.default_rng(1).integers(-1, 3, 10).astype(np.int32)


def parts_of(vectors):
    return np.split(vectors, np.cumsum(PARTS)[:-1])


def value_of(settings, vectors, clusters, **given):
    """The sum of what the objective of the settings gives, on one device."""
    return sum(losses_of(settings, vectors, clusters, **given).values())


def computed(loss, *sides, **options):
    """A loss by itself; compiled whole, since each operation alone takes longer to compile."""
    return float(jax.jit(functools.partial(loss, **options))(*sides))


def losses_of(settings, vectors, clusters, *, targets=None, key=None, **options):
    objective = loss_terms(settings, **options)
    nothing = np.zeros(0, np.int32)
    targets = np.zeros((len(vectors), 0), np.float32) if targets is None else targets
    order = np.arange(len(vectors))
    batch = Batch(nothing, (), order, clusters, LABELS, targets, nothing, nothing)
    losses = jax.jit(
        jax.shard_map(
            lambda vectors, batch: objective(vectors, batch, key, "data"),
            mesh=Mesh(np.array(jax.devices()[:1]), ("data",)),
            in_specs=PartitionSpec("data"),
            out_specs=PartitionSpec(),
        )
    )(vectors, batch)
    return {name: float(value) for name, value in losses.items()}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"loss.smoothing": 0.1}, {"smoothing": 0.1}),
        ({"loss.distance": "euc"}, {"distance": "euc"}),
        ({"loss.prior": "distance"}, {"prior": "distance"}),
        ({"loss.symmetric": True}, {"symmetric": True}),
        ({"loss.mask_own_cluster": True}, {"clusters": True}),
        ({"loss.names": ("triplet",)}, {"key": True}),
        ({"loss.names": ("triplet",), "loss.margin": 3.0}, {"key": True, "margin": 3.0}),
        (
            {"loss.names": ("triplet",), "loss.distance": "euc"},
            {"key": True, "distance": "euc"},
        ),
        ({"loss.names": ("triplet",), "loss.negatives": "hard"}, {"negatives": "hard"}),
        (
            {"loss.names": ("triplet",), "loss.negatives": "hard_anchor"},
            {"negatives": "hard_anchor"},
        ),
        (
            {"loss.names": ("triplet",), "loss.mask_own_cluster": True},
            {"key": True, "clusters": True},
        ),
        ({"loss.names": ("ranking",)}, {"smoothing": 0.3}),
        ({"loss.names": ("ranking",), "loss.smoothing": 0.0}, {}),
        (
            {"loss.names": ("ranking",), "loss.symmetric": True},
            {"symmetric": True, "smoothing": 0.3},
        ),
        (
            {"loss.names": ("ranking",), "loss.mask_own_cluster": True},
            {"clusters": True, "smoothing": 0.3},
        ),
    ],
)
def test_every_setting_reaches_the_loss(changes, expected, vectors, clusters):
    key = jax.random.key(3)
    settings = override(TrainConfig(), changes)
    value = value_of(settings, vectors, clusters, key=key)
    given = {"key": key, "clusters": clusters}
    options = {name: given.get(name, option) for name, option in expected.items()}
    losses = {"sdml": sdml_loss, "triplet": triplet_loss, "ranking": ranking_loss}
    loss = losses[settings.loss.names[0]]
    queries, candidates, *_ = parts_of(vectors)
    assert value == pytest.approx(computed(loss, queries, candidates, **options), rel=1e-5)
    if expected not in ({}, {"key": True}):
        plain = {"key": key} if settings.loss.names == ("triplet",) else {}
        assert abs(value - computed(loss, queries, candidates, **plain)) > 1e-3


def test_several_losses_are_weighed(vectors, clusters):
    settings = TrainConfig()
    settings.loss.names, settings.loss.weights = ("sdml", "contrastive", "ranking"), (1.0, 2.0, 0.5)
    found = losses_of(settings, vectors, clusters)
    for name, weight in (("sdml", 1.0), ("contrastive", 2.0), ("ranking", 0.5)):
        settings.loss.names, settings.loss.weights = (name,), ()
        alone = value_of(settings, vectors, clusters)
        assert found.pop(name) == pytest.approx(weight * alone, rel=1e-5)
    assert not found


def test_vectors_are_scaled_and_imitation_is_weighed(vectors, clusters):
    queries, candidates, *_ = parts_of(vectors)
    targets = np.roll(vectors, 1, axis=0)
    settings = TrainConfig()
    settings.loss.scale, settings.teacher.weight = 0.5, 3.0
    value = value_of(settings, vectors, clusters, targets=targets)
    expected = sdml_loss(0.5 * queries, 0.5 * candidates) + 3 * imitation_loss(vectors, targets)
    assert value == pytest.approx(float(expected), rel=1e-5)


def test_similarities_are_weighed_by_the_imitation_they_join(vectors, clusters):
    targets = np.roll(vectors, 1, axis=0)
    settings = TrainConfig()
    settings.teacher.weight, settings.teacher.similarities = 3.0, 0.5
    found = losses_of(settings, vectors, clusters, targets=targets)
    expected = computed(similarities_loss, vectors, targets)
    assert expected > 0.1
    assert found["similarities"] == pytest.approx(1.5 * expected, rel=1e-5)
    alone = losses_of(settings, vectors, clusters, targets=targets, imitation_alone=True)
    assert {*alone} == {"imitation", "similarities"}
    assert alone["similarities"] == pytest.approx(0.5 * expected, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "function"),
    [("contrastive", contrastive_loss), ("online_contrastive", online_contrastive_loss)],
)
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"loss.margin": 1.3}, {"margin": 1.3}),
    ],
)
def test_labelled_pairs_are_those_of_contrastive_losses(
    loss, function, changes, expected, vectors, clusters
):
    settings = override(TrainConfig(), changes | {"loss.names": (loss,)})
    *_, left, right = parts_of(vectors)
    expected_value = computed(function, left, right, labels=LABELS, **expected)
    assert expected_value > 0
    assert value_of(settings, vectors, clusters) == pytest.approx(expected_value, rel=1e-5)
