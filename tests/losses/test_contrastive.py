import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.errors import UserError
from qpr_jax.losses import contrastive_loss, online_contrastive_loss
from tests.losses.references import DEVICES, check, slow

LOSSES = (contrastive_loss, online_contrastive_loss)


def measured(x, y, metric):
    """The distance of two float64 vectors, and its gradients; 0 where it has none."""
    if metric == "euclidean":
        length = np.linalg.norm(x - y)
        slope = (x - y) / length if length else 0 * x
        return length, slope, -slope
    a, b = np.linalg.norm(x), np.linalg.norm(y)
    if not a or not b:
        return 1.0, *(
            np.divide(-w / v, u) if u and v else 0 * w for u, v, w in ((a, b, y), (b, a, x))
        )
    cosine = x @ y / a / b
    return 1 - cosine, -(y / b - cosine * x / a) / a, -(x / a - cosine * y / b) / b


def reference(loss, left, right, labels, *, metric="cosine", margin=0.5):
    """Value and gradients as the definitions say, pair by pair in float64."""
    x, y = np.asarray(left, np.float64), np.asarray(right, np.float64)
    same = np.asarray(labels).astype(bool)
    found = [measured(a, b, metric) for a, b in zip(x, y, strict=True)]
    distances = np.array([value for value, _, _ in found])
    weight, hard = 0.5 / len(x), np.ones(len(x), bool)
    if loss is online_contrastive_loss:
        weight, hard = 1.0 / len(x), hard_of(distances, same)
    value, of_x, of_y = 0.0, np.zeros_like(x), np.zeros_like(y)
    for i, (d, from_x, from_y) in enumerate(found):
        missing = d if same[i] else max(0, margin - d)
        if hard[i]:
            value += weight * missing**2
            slope = 2 * weight * missing * (1 if same[i] else -1)
            of_x[i], of_y[i] = slope * from_x, slope * from_y
    return value, of_x, of_y


def hard_of(distances, same):
    """sentence-transformers' choice: extremes of the other kind, means of the own without two."""
    apart, together = distances[~same], distances[same]
    far = together.max() if len(together) > 1 else apart.mean() if len(apart) else 0
    near = apart.min() if len(apart) > 1 else together.mean() if len(together) else 0
    return np.where(same, distances > near, distances < far)


def batch(n, d, *, offset=0.0, seed=0):
    """n pairs at all distances, the labels in no order, about as many of each."""
    rng = np.random.default_rng(seed)
    left = rng.normal(size=(n, d))
    right = left + rng.uniform(0.05, 1.5, size=(n, 1)) * rng.normal(size=(n, d))
    labels = rng.integers(0, 2, n)
    scale = 1 / np.sqrt(d)
    return *(jnp.asarray(scale * side + offset, jnp.float32) for side in (left, right)), labels


def compiled(loss, **options):
    return jax.jit(
        jax.value_and_grad(functools.partial(loss, **options), argnums=(0, 1)),
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("metric", "margin"), [("cosine", 0.5), ("cosine", 1.2), ("euclidean", 0.9)]
)
@pytest.mark.parametrize(("n", "d"), [(1, 1), slow(2, 3), (37, 7), slow(512, 300)])
def test_value_and_gradient_are_those_of_the_reference(n, d, loss, metric, margin):
    options = {"metric": metric, "margin": margin}
    run = compiled(loss, **options)
    for offset in (0.0, 1e4 if metric == "euclidean" else 1.0):
        given = batch(n, d, offset=offset)
        check(run(*given), reference(loss, *given, **options))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("devices", DEVICES)
def test_any_number_of_devices_gives_the_same(loss, metric, devices):
    split = PartitionSpec("data")
    mapped = jax.shard_map(
        functools.partial(loss, metric=metric, margin=1.1, axis_name="data"),
        mesh=Mesh(np.array(jax.devices()[:devices]), ("data",)),
        in_specs=(split,) * 3,
        out_specs=PartitionSpec(),
    )
    run = jax.jit(jax.value_and_grad(mapped, argnums=(0, 1)))
    left, right, mixed = batch(48, 6)
    # Labels in no order, and those of one kind on few devices, on one, and on none.
    for labels in (mixed, *((np.arange(48) < count).astype(int) for count in (20, 1, 0, 48))):
        expected = reference(loss, left, right, labels, metric=metric, margin=1.1)
        check(run(left, right, labels), expected)


def test_only_the_hard_pairs_count():
    """Distances 0.1 and 0.4 of one meaning, 0.3 and 0.6 of two, and one beyond the margin."""
    x, y = jnp.zeros((5, 1)), jnp.array([[0.1], [0.4], [0.3], [0.6], [0.35]])
    labels = jnp.array([1, 1, 0, 0, 0])
    loss = compiled(online_contrastive_loss, metric="euclidean", margin=0.34)
    value, (gradient, _) = loss(x, y, labels)
    assert float(value) == pytest.approx((0.4**2 + 0.04**2) / 5, rel=1e-5)
    np.testing.assert_allclose(gradient[:, 0], [0, -0.16, 0.016, 0, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([1, 1, 1], 0.6**2),  # beyond the mean of 0.1, 0.3 and 0.6
        ([0, 0, 0], 0.4**2 + 0.2**2),  # within it
        ([1, 0, 0], 0.2**2),  # one of one meaning: none beyond 0.3, one within the mean 0.45
        ([1, 1, 0], 0.3**2),  # one of two: of the mean 0.2; 0.6 is not within 0.3
    ],
)
def test_fewer_than_two_of_a_kind_leave_the_other_its_mean(labels, expected):
    x, y = jnp.zeros((3, 1)), jnp.array([[0.1], [0.3], [0.6]])
    value, gradients = compiled(online_contrastive_loss, metric="euclidean")(
        x, y, jnp.array(labels)
    )
    assert float(value) == pytest.approx(expected / 3, rel=1e-5)
    assert np.isfinite(gradients).all()


def test_pairs_that_are_all_as_far_are_not_hard():
    n = 13
    loss = compiled(online_contrastive_loss, metric="euclidean")
    for row in np.random.default_rng(0).normal(size=(40, 2, 5)).astype(np.float32):
        x, y = (np.tile(side, (n, 1)) for side in row)
        value, _ = loss(x, y, jnp.ones(n))
        assert float(value) == 0


def test_one_pair_has_nothing_to_be_compared_with():
    for label in (0, 1):
        value, gradients = compiled(online_contrastive_loss)(
            jnp.array([[1.0, 2.0]]), jnp.array([[2.0, 1.0]]), jnp.array([label])
        )
        assert float(value) == 0
        assert not np.asarray(gradients).any()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_vectors_that_coincide_and_vectors_of_zeros_have_finite_gradients(loss, metric):
    x = jnp.array([[1.0, 2.0], [0.0, 0.0], [0.0, 0.0], [3.0, 1.0]] * 2)
    y = jnp.array([[1.0, 2.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]] * 2)
    labels = jnp.array([1] * 4 + [0] * 4)
    value, gradients = compiled(loss, metric=metric, margin=1.5)(x, y, labels)
    assert float(value) == pytest.approx(
        reference(loss, x, y, labels, metric=metric, margin=1.5)[0], rel=1e-5
    )
    assert np.isfinite(gradients).all()
    for side, rows in zip((x, y), gradients, strict=True):
        if metric == "cosine":
            assert not np.asarray(rows)[np.asarray(side == 0).all(axis=1)].any()
    np.testing.assert_allclose(gradients[0][0], 0, atol=1e-6)
    np.testing.assert_allclose(gradients[0][4], 0, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_labels_are_numbers_or_truths(loss):
    left, right, labels = batch(12, 4)
    expected = float(loss(left, right, labels))
    for kind in (bool, np.float32, np.int8):
        assert float(loss(left, right, jnp.asarray(labels.astype(kind)))) == expected
    assert float(loss(left, right, labels.tolist())) == expected
    with pytest.raises(UserError, match=r"`labels`: expected 1 or 0, got '[01]'"):
        loss(left, right, [str(label) for label in labels])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", [int, np.float32])
def test_other_labels_are_errors(loss, kind):
    left, right, labels = batch(12, 4)
    for other in (-1, 2) if kind is int else (-1, 0.9, np.nan):
        wrong = labels.astype(kind)
        wrong[5] = other
        for given in (wrong, jnp.asarray(wrong)):
            with pytest.raises(UserError, match=f"`labels`: expected 1 or 0, got {other}"):
                loss(left, right, given)
            with pytest.raises(UserError, match="`labels`: expected 1 or 0"):
                jax.grad(lambda left, given=given: loss(left, right, given))(left)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_what_is_not_a_number_shows(loss, metric):
    """In either side of a pair of either label, also if it is the only one of its label."""
    left, right, labels = batch(12, 4)
    for given in (labels, np.ones(12, int), np.zeros(12, int), np.eye(12)[3], np.eye(12)[4] == 0):
        for row in (3, 4):
            bad = jnp.asarray(left).at[row, 1].set(jnp.nan)
            for sides in ((bad, right), (right, bad)):
                assert np.isnan(loss(*sides, given, metric=metric))


@pytest.mark.parametrize("loss", LOSSES)
def test_an_infinite_vector_shows_where_its_pair_should_be_near(loss):
    left, right, _ = batch(12, 4)
    bad = jnp.asarray(left).at[3, 1].set(jnp.inf)
    assert not np.isfinite(loss(bad, right, np.ones(12, int), metric="euclidean"))


@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_vectors_give_a_float32_loss(loss):
    left, right, labels = batch(12, 4)
    left, right = left.astype(jnp.bfloat16), right.astype(jnp.bfloat16)
    value = loss(left, right, labels)
    assert value.dtype == jnp.float32
    assert float(value) == pytest.approx(reference(loss, left, right, labels)[0], rel=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "ssd"}, "expected `metric` to be one of cosine, euclidean, got 'ssd'"),
        ({"margin": -1.0}, r"`margin`: expected at least 0 and finite, got -1\.0; 0\.5 is usual"),
        ({"right": jnp.zeros((3, 3))}, r"expected `left` and `right` of one non-empty \[n, d\]"),
        ({"left": jnp.zeros(3), "right": jnp.zeros(3)}, r"expected `left` and `right` of one"),
        ({"labels": jnp.zeros((4, 1))}, r"`labels`: expected \(4,\), got \(4, 1\); give 1 or 0"),
    ],
)
def test_mistakes_are_named(loss, changes, message):
    zeros = jnp.zeros((4, 3))
    given = {"left": zeros, "right": zeros, "labels": jnp.zeros(4)} | changes
    kind = ValueError if "ssd" in message else UserError
    with pytest.raises(kind, match=message):
        loss(**given)
