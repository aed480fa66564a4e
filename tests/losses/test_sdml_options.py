"""SDML with other distances, priors, masks, more candidates and in both directions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import sdml_loss
from tests.losses import references
from tests.losses.references import sdml_reference as reference
from tests.losses.references import slow

UNIFORM, DISTANCE = {"prior": "uniform"}, {"prior": "distance"}


# Distance, prior, symmetric, extra candidates and clusters.
CASES = (
    ("ssd", UNIFORM, True, 8, 13),
    ("ssd", DISTANCE, True, 8, 21),
    ("euc", UNIFORM, True, 8, 21),
    ("dot", UNIFORM, False, 0, 0),
    ("dot", DISTANCE, True, 8, 21),
)
MORE_CASES = (
    ("ssd", UNIFORM, False, 8, 0),
    ("euc", DISTANCE, False, 0, 13),
    ("ssd", UNIFORM, True, 0, 0),
    ("ssd", DISTANCE, False, 0, 0),
    ("euc", UNIFORM, False, 0, 0),
    ("dot", UNIFORM, True, 8, 13),
)


def compiled(loss):
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def check(loss, arguments, options):
    references.check(loss(*arguments), reference(*arguments, **options))


def with_options(**options):
    """sdml_loss as a function of queries, candidates and clusters."""
    return lambda x, y, clusters=None, **more: sdml_loss(x, y, clusters=clusters, **options, **more)


@pytest.mark.parametrize(
    ("distance", "prior", "symmetric", "extra", "clustered", "tile"),
    [
        *((*case, 5) for case in CASES),
        (*CASES[-1], None),
        *(slow(*case, None) for case in CASES[:-1]),
        *(slow(*case, tile) for case in MORE_CASES for tile in (None, 5)),
    ],
)
def test_value_and_gradient_are_those_of_the_reference(
    distance, prior, symmetric, extra, clustered, tile, batch
):
    """All at once, and in tiles of which the last is not full."""
    options = {"distance": distance, "symmetric": symmetric, "smoothing": 0.2, **prior}
    loss = compiled(with_options(**options, tile=tile))
    for offset in (0.0, 1.0 if distance == "dot" else 1e4):  # a dot product is from the origin
        x, y, clusters = batch(13, 13 + extra, 7, offset=offset)
        check(loss, (x, y, clusters[:clustered]) if clustered else (x, y), options)


@pytest.mark.parametrize(("prior", "smoothing"), [(UNIFORM, 0.0), (DISTANCE, 1.0)])
def test_no_smoothing_and_nothing_else(prior, smoothing, batch):
    options = {"smoothing": smoothing, **prior}
    check(compiled(with_options(**options)), batch(9, 11, 5), options)


@pytest.mark.parametrize(
    "options",
    [
        {"distance": "euc", "symmetric": True, **DISTANCE},
        slow({"symmetric": True, **DISTANCE}),
    ],
    ids=str,
)
def test_a_batch_of_real_size(options, batch):
    loss = compiled(with_options(**options))
    for offset in (0.0, 1e4):
        check(loss, batch(512, 600, 300, offset=offset), options)


def test_vectors_that_coincide_or_nearly_do(batch):
    options = {"distance": "euc", "symmetric": True, **DISTANCE}
    loss = compiled(with_options(**options))
    for offset in (0.0, 1e4):
        x, y, _ = batch(24, 30, 20, offset=offset)
        check(loss, (x, y.at[:24].set(x)), options)
        check(loss, (x.at[3:9].set(x[0]), y.at[5:27].set(x[0])), options)
        close = (y - y.mean(axis=0)[None]) * 1e-4 + x[:1]
        check(loss, (x.at[::2].set(close[:24:2]), y.at[::3].set(close[::3])), options)
        check(loss, (x * 0 + x[:1], y * 0 + x[:1]), options)


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        *(slow({"distance": "euc", "symmetric": True, **DISTANCE}, count) for count in (1, 2, 4)),
        ({"distance": "euc", "symmetric": True, **DISTANCE}, 8),
        *(slow({"symmetric": True, "tile": 3}, count) for count in (1, 2, 4)),
        ({"symmetric": True, "tile": 3}, 8),
        slow({"distance": "euc", "symmetric": True, "tile": 3, **DISTANCE}, 4),
        ({"tile": 3}, 2),
        ({}, 4),
    ],
)
def test_mapped_over_devices_it_is_the_loss_of_the_global_batch(options, devices, mapped, batch):
    loss = mapped(with_options(**options), devices)
    expected = {name: value for name, value in options.items() if name != "tile"}
    for offset in (0.0, 1e4):
        check(loss, batch(16, 24, 10, offset=offset), expected)


def test_devices_that_take_their_distances_in_different_ways(mapped, batch):
    """All of one device's vectors nearly coincide, the other device's are spread."""
    options = {"distance": "euc"}
    loss = mapped(with_options(**options), 2)
    x, y, _ = batch(200, 200, 10)
    check(loss, (x.at[:100].multiply(1e-3), y.at[:100].multiply(1e-3)), options)


def test_clusters_of_pairs_alone_leave_the_rest_without_one(batch):
    x, y, clusters = batch(6, 10, 4)
    loss = jax.jit(with_options())
    short = loss(x, y, clusters[:6])
    assert short == loss(x, y, np.where(np.arange(10) < 6, clusters, -1))
    assert short != loss(x, y, clusters)


def test_the_distance_prior_by_hand():
    """Distances 0, 1 and 2 of the first query: the smoothing is spread as 1 to 1/e."""
    x, y = jnp.zeros((1, 1)), jnp.array([[0.0], [1.0], [2.0]])
    p = np.exp([0, -1, -2]) / np.exp([0, -1, -2]).sum()
    target = np.array([0.7, 0.3 / (1 + np.exp(-1)), 0.3 * np.exp(-1) / (1 + np.exp(-1))])
    expected = (target * np.log(target / p)).sum()
    value = jax.jit(with_options(distance="euc", prior="distance"))(x, y)
    assert float(value) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("prior", ["uniform", "distance"])
def test_pairs_of_one_cluster_have_nothing_to_tell_apart(prior, batch):
    x, y, _ = batch(5, 5, 3)
    loss = compiled(with_options(prior=prior))
    value, gradients = loss(x, y, np.zeros(5, np.int32))
    assert float(value) == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(gradients, 0, atol=1e-6)


def test_one_pair_has_a_finite_gradient():
    loss = compiled(with_options(distance="euc", symmetric=True))
    value, gradients = loss(jnp.ones((1, 3)), jnp.zeros((1, 3)))
    assert float(value) == 0
    assert not np.asarray(gradients).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distance": "cosine"}, "expected `distance` to be one of ssd, euc, dot, got 'cosine'"),
        ({"prior": "flat"}, "expected `prior` to be one of uniform, distance, got 'flat'"),
        ({"tile": 0}, 'expected `tile` to be "auto", None or 1 and more rows, got 0'),
        ({"tile": "small"}, "expected `tile` to be .* got 'small'"),
        (
            {"clusters": jnp.zeros(3, jnp.int32)},
            r"expected integer `clusters`, one of each candidate \(4,\) or of each query \(2,\)",
        ),
        ({"clusters": jnp.zeros(4)}, r"expected integer `clusters`.*got float32 \(4,\)"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        sdml_loss(jnp.zeros((2, 3)), jnp.zeros((4, 3)), **options)
