import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import triplet_loss
from tests.losses.references import check, slow


def allowed(i, m, clusters):
    """The candidates that can be the negative of row i."""
    others = [j for j in range(m) if j != i]
    if clusters is None or clusters[i] < 0:
        return others
    return [j for j in others if j >= len(clusters) or clusters[j] != clusters[i]]


def closest(queries, candidates, clusters, negatives):
    """The hard negative of each row, None where there is none to choose."""
    x, y = np.asarray(queries, np.float64), np.asarray(candidates, np.float64)
    chosen = []
    for i, target in enumerate(y[: len(x)] if negatives == "hard" else x):
        choice = allowed(i, len(y), clusters)
        near = ((target - y[choice]) ** 2).sum(axis=1)
        chosen.append(choice[near.argmin()] if choice else None)
    return chosen


def reference(queries, candidates, chosen, *, margin=0.5, distance="ssd"):
    """Equation (2) as written, with the mean over rows, in float64: value and gradients."""
    x, y = np.asarray(queries, np.float64), np.asarray(candidates, np.float64)
    value, of_x, of_y = 0.0, np.zeros_like(x), np.zeros_like(y)

    def measure(a, b):
        squared = ((a - b) ** 2).sum()
        if distance == "ssd":
            return squared, 2 * (a - b)
        root = np.sqrt(squared)
        return root, (a - b) / root if root > 0 else 0 * a

    for i, negative in enumerate(chosen):
        if negative is None:
            continue
        near, near_slope = measure(x[i], y[i])
        far, far_slope = measure(x[i], y[negative])
        if near - far + margin > 0:
            value += (near - far + margin) / len(x)
            of_x[i] += (near_slope - far_slope) / len(x)
            of_y[i] -= near_slope / len(x)
            of_y[negative] += far_slope / len(x)
    return value, of_x, of_y


def compiled(loss):
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def with_options(**options):
    """triplet_loss as a function of queries, candidates and clusters."""
    return lambda x, y, clusters=None, **more: triplet_loss(
        x, y, clusters=clusters, **options, **more
    )


def drawn(queries, candidates, gradient):
    """The negatives chosen, read off the queries' gradient where every row is within the margin."""
    y = np.asarray(candidates, np.float64)
    negatives = y[: len(queries)] + np.asarray(gradient, np.float64) * len(queries) / 2
    return ((negatives[:, None] - y[None]) ** 2).sum(axis=2).argmin(axis=1)


@pytest.mark.parametrize(
    ("negatives", "distance", "extra", "clustered"),
    [
        ("hard", "ssd", 0, 0),
        ("hard", "euc", 8, 21),
        ("hard_anchor", "ssd", 8, 13),
        ("hard_anchor", "euc", 0, 13),
    ],
)
def test_hard_negatives(negatives, distance, extra, clustered, batch):
    loss = compiled(with_options(negatives=negatives, distance=distance, margin=0.9))
    for offset in (0.0, 1e4):
        x, y, clusters = batch(13, 13 + extra, 7, offset=offset)
        clusters = clusters[:clustered] if clustered else None
        chosen = closest(x, y, clusters, negatives)
        check(loss(x, y, clusters), reference(x, y, chosen, margin=0.9, distance=distance))


def test_the_two_readings_of_hard_differ():
    x = jnp.array([[0.0], [10.0]])
    y = jnp.array([[3.0], [5.0], [-1.0]])  # of query 0: 5 is closest to its positive, -1 to itself
    for negatives, expected in (("hard", (34 + 26) / 2), ("hard_anchor", (58 + 26) / 2)):
        assert jax.jit(with_options(negatives=negatives, margin=50.0))(x, y) == expected


def test_a_batch_of_real_size(batch):
    loss = compiled(with_options(negatives="hard", distance="euc"))
    for offset in (0.0, 1e4):
        x, y, clusters = batch(512, 600, 300, offset=offset)
        chosen = closest(x, y, clusters, "hard")
        check(loss(x, y, clusters), reference(x, y, chosen, distance="euc"))


@pytest.mark.parametrize(("distance", "clustered"), [("ssd", False), ("euc", True)])
def test_random_negatives(distance, clustered, batch):
    x, y, clusters = batch(13, 21, 7, offset=1e4)
    clusters = clusters if clustered else None
    key = jax.random.key(3)
    _, (gradient, _) = compiled(with_options(key=key, margin=1e3))(x, y, clusters)
    chosen = drawn(x, y, gradient)
    for i, j in enumerate(chosen):
        assert j in allowed(i, len(y), clusters)
    loss = compiled(with_options(key=key, distance=distance))
    check(loss(x, y, clusters), reference(x, y, chosen, distance=distance))


def test_random_negatives_are_drawn_evenly_of_those_allowed(batch):
    x, y, clusters = batch(6, 9, 30)
    draws = 3000
    gradients = jax.jit(
        jax.vmap(lambda key: jax.grad(triplet_loss)(x, y, clusters=clusters, key=key, margin=1e3))
    )(jax.random.split(jax.random.key(0), draws))
    chosen = np.array([drawn(x, y, gradient) for gradient in np.asarray(gradients)])
    for i in range(6):
        counts = np.bincount(chosen[:, i], minlength=9)
        choice = allowed(i, 9, clusters)
        assert counts[choice].sum() == draws
        expected = draws / len(choice)
        assert ((counts[choice] - expected) ** 2 / expected).sum() < 30  # chi2 with at most 7
    # Rows draw by themselves: not all of them the same place in their lists.
    assert len(np.unique(chosen, axis=0)) > draws / 10


@pytest.fixture(scope="module")
def drawn_alone(batch):
    """The random negatives of the test below, unmapped."""
    x, y, clusters = batch(16, 24, 10)
    _, (gradient, _) = compiled(with_options(key=jax.random.key(5), margin=1e3))(x, y, clusters)
    return drawn(x, y, gradient)


@pytest.mark.parametrize(
    ("negatives", "devices"),
    [
        *itertools.product(["random", "hard"], [1, 8]),
        *itertools.starmap(slow, itertools.product(["random", "hard"], [2, 4])),
        ("hard_anchor", 4),
    ],
)
def test_mapped_over_devices_it_is_the_loss_of_the_global_batch(
    negatives, devices, mapped, batch, drawn_alone
):
    x, y, clusters = batch(16, 24, 10)
    options = {"negatives": negatives, "key": jax.random.key(5)}
    chosen = drawn_alone if negatives == "random" else closest(x, y, clusters, negatives)
    loss = mapped(with_options(distance="euc", **options), devices)
    check(loss(x, y, clusters), reference(x, y, chosen, distance="euc"))


def test_vectors_that_coincide():
    loss = compiled(with_options(negatives="hard", distance="euc"))
    value, gradients = loss(jnp.ones((6, 4)), jnp.ones((8, 4)))
    assert float(value) == 0.5
    assert not np.asarray(gradients[0]).any()
    assert not np.asarray(gradients[1]).any()


@pytest.mark.parametrize("negatives", ["random", "hard"])
def test_a_row_without_negatives_counts_nothing(negatives):
    """Rows 0 and 1 are of one cluster, and of row 2 both can be the negative."""
    x = y = jnp.array([[0.0], [1.0], [0.5]])
    clusters = jnp.array([4, 4, -1])
    loss = compiled(with_options(negatives=negatives, key=jax.random.key(0), margin=1.0))
    assert float(loss(x, y, clusters)[0]) == pytest.approx(3 * 0.75 / 3)
    value, gradients = loss(x[:2], y[:2], clusters[:2])
    assert float(value) == 0
    assert not np.asarray(gradients).any()


def test_half_precision_vectors_give_a_float32_loss(batch):
    x, y = (side.astype(jnp.bfloat16) for side in batch(8, 8, 16)[:2])
    value = jax.jit(with_options(negatives="hard"))(x, y)
    assert value.dtype == jnp.float32
    expected = reference(x, y, closest(x, y, None, "hard"))[0]
    assert float(value) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distance": "cosine"}, "expected `distance` to be one of ssd, euc, got 'cosine'"),
        (
            {"negatives": "soft"},
            "expected `negatives` to be one of random, hard, hard_anchor, got 'soft'",
        ),
        ({"margin": -1.0}, r"expected `margin` of at least 0, got -1\.0"),
        ({}, 'expected a `key` with `negatives="random"`'),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        triplet_loss(jnp.zeros((2, 3)), jnp.zeros((4, 3)), **options)


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"expected `queries` and `candidates` of one non-empty"):
        triplet_loss(jnp.zeros((4, 3)), jnp.zeros((2, 3)), negatives="hard")
