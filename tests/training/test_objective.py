import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.losses import imitation_loss, ranking_loss, sdml_loss, triplet_loss
from qpr_jax.training.objective import make_objective
from qpr_jax.training.settings import default_settings


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(8, 5)).astype(np.float32)
    candidates = np.concatenate([queries, queries[:2]])
    candidates += 0.7 * rng.normal(size=(10, 5)).astype(np.float32)
    return queries, candidates, rng.integers(-1, 3, 10).astype(np.int32)


def value_of(settings, queries, candidates, clusters, *, targets=None, key=None):
    """What the objective of the settings is, on one device."""
    objective = make_objective(settings)
    targets = np.zeros((len(queries) + len(candidates), 0)) if targets is None else targets
    return jax.jit(
        jax.shard_map(
            lambda q, c, k, t: objective(q, c, clusters=k, targets=t, key=key, axis_name="data"),
            mesh=Mesh(np.array(jax.devices()[:1]), ("data",)),
            in_specs=(PartitionSpec("data"),) * 4,
            out_specs=PartitionSpec(),
        )
    )(queries, candidates, clusters, targets)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"smoothing": 0.1}, {"smoothing": 0.1}),
        ({"distance": "euc"}, {"distance": "euc"}),
        ({"prior": "distance", "temperature": 0.3}, {"prior": "distance", "temperature": 0.3}),
        ({"symmetric": True}, {"symmetric": True}),
        ({"mask_own_cluster": True}, {"clusters": True}),
        ({"loss": "triplet"}, {"key": True}),
        ({"loss": "triplet", "margin": 3.0}, {"key": True, "margin": 3.0}),
        ({"loss": "triplet", "distance": "euc"}, {"key": True, "distance": "euc"}),
        ({"loss": "triplet", "negatives": "hard"}, {"negatives": "hard"}),
        ({"loss": "triplet", "negatives": "hard_anchor"}, {"negatives": "hard_anchor"}),
        ({"loss": "triplet", "mask_own_cluster": True}, {"key": True, "clusters": True}),
        ({"loss": "ranking"}, {"smoothing": 0.3}),
        ({"loss": "ranking", "smoothing": 0.0, "similarity_scale": 5.0}, {"scale": 5.0}),
        ({"loss": "ranking", "similarity": "dot"}, {"similarity": "dot", "smoothing": 0.3}),
        ({"loss": "ranking", "symmetric": True}, {"symmetric": True, "smoothing": 0.3}),
        ({"loss": "ranking", "mask_own_cluster": True}, {"clusters": True, "smoothing": 0.3}),
    ],
)
def test_every_setting_reaches_the_loss(changes, expected, batch):
    queries, candidates, clusters = batch
    key = jax.random.key(3)
    settings = default_settings()
    settings.update(changes)
    value = value_of(settings, *batch, key=key)
    given = {"key": key, "clusters": clusters}
    options = {name: given.get(name, option) for name, option in expected.items()}
    losses = {"sdml": sdml_loss, "triplet": triplet_loss, "ranking": ranking_loss}
    loss = losses[settings.loss]
    assert float(value) == pytest.approx(float(loss(queries, candidates, **options)), rel=1e-5)
    if expected not in ({}, {"key": True}):
        plain = {"key": key} if settings.loss == "triplet" else {}
        assert abs(float(value) - float(loss(queries, candidates, **plain))) > 1e-3


def test_vectors_are_scaled_and_imitation_is_weighed(batch):
    queries, candidates, _ = batch
    vectors = np.concatenate([queries, candidates])
    targets = np.roll(vectors, 1, axis=0)
    settings = default_settings()
    settings.scale, settings.teacher.weight = 0.5, 3.0
    value = value_of(settings, *batch, targets=targets)
    expected = sdml_loss(0.5 * queries, 0.5 * candidates) + 3 * imitation_loss(vectors, targets)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(("similarity", "factor"), [("cosine", 1.0), ("dot", 0.25)])
def test_the_scale_of_vectors_is_not_that_of_similarities(batch, similarity, factor):
    """Half of both vectors is a quarter of their dot product, and no other cosine."""
    queries, candidates, _ = batch
    settings = default_settings()
    settings.update(loss="ranking", similarity=similarity, scale=0.5, similarity_scale=8.0)
    value = value_of(settings, *batch)
    expected = ranking_loss(
        queries, candidates, similarity=similarity, scale=8 * factor, smoothing=0.3
    )
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
