"""What holds for every loss of the registry."""

import doctest
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from qpr_jax import losses
from qpr_jax.losses import batch_loss, tiled_softmax
from qpr_jax.training.objectives import LOSSES
from tests.losses.cases import (
    CASES,
    PAIRS,
    SPLIT,
    WHOLE,
    batch_of,
    check,
    over_devices,
    pairs,
    value,
    value_and_gradients,
)
from tests.lowered import collectives, dots

each_case = pytest.mark.parametrize("case", CASES, ids=str)


def test_every_loss_is_here():
    others = {"batch_loss", "mean_loss", "is_negative", "squared_distances"}
    assert {f"{case.name}_loss" for case in CASES} == {*losses.__all__} - others


@each_case
def test_value_and_gradient_are_those_of_float64(case):
    batch = batch_of(case, 1, 2)
    check(value_and_gradients(case)(*batch), case.expected(*batch), 3e-6)
    with jax.enable_x64(True):
        batch = batch_of(case, 13, 5, 8, np.float64)
        got = value_and_gradients(case)(*batch)
        assert got[0].dtype == jnp.float64
        check(got, case.expected(*batch), 1e-12)


def test_a_batch_of_two_tiles():
    """The second of which is not full."""
    case = CASES[1]
    batch = batch_of(case, 701, 50, 88)
    check(value_and_gradients(case)(*batch), case.expected(*batch), 2e-6)


BOTH = [case for case in CASES if "symmetric" in case.options]
MAPS = [(case, 8, True) for case in CASES] + [(CASES[1], 2, True), (CASES[1], 4, True)]
MAPS += [(case, 4, False) for case in BOTH]


@pytest.mark.parametrize(("case", "devices", "checked"), MAPS)
def test_any_number_of_devices_gives_the_same(case, devices, checked):
    batch = batch_of(case, 16, 10, 8)
    check(over_devices(case.loss, devices, batch, check_vma=checked), case.expected(*batch))


@pytest.mark.parametrize("case", [CASES[1], CASES[6]], ids=str)
@pytest.mark.parametrize("sizes", [(1, 0, 3), (2, 5, 4), (31, 0, 7), (513, 2, 20), (700, 88, 33)])
def test_both_directions_of_odd_sizes(case, sizes, monkeypatch):
    """Also where the products are computed twice, and without clusters."""
    n, extra, d = sizes
    x, y, clusters = batch_of(case, n, d, extra) if n > 2 else (*pairs(n, n + extra, d)[:2], None)
    kept = value_and_gradients(case)(x, y, clusters)
    check(kept, case.expected(x, y, clusters), 3e-6)
    monkeypatch.setattr(tiled_softmax, "KEPT", 0)
    check(value_and_gradients(case)(x, y, clusters), tuple(map(np.asarray, (kept[0], *kept[1]))))


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[5], CASES[6]], ids=str)
def test_the_order_of_an_accelerator_gives_the_same(case, monkeypatch):
    """A TPU keeps exponentials in bfloat16 where the products are."""
    batch = batch_of(case, 33, 20, 7)
    expected = case.expected(*batch)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    check(value_and_gradients(case)(*batch), expected, 3e-6)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    check(value_and_gradients(case)(*batch), expected, 3e-6)
    with jax.default_matmul_precision("default"):
        found = value_and_gradients(case)(*batch)
    check(found, expected, 0.1)
    with pytest.raises(AssertionError):
        check(found, expected, 1e-5)


@pytest.mark.parametrize("case", [CASES[1], CASES[6]], ids=str)
def test_both_directions_gather_the_candidates_alone(case):
    """And reduce two numbers a column: its maximum and its sum."""
    x, y, clusters = pairs(16, 16, 10)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    loss = functools.partial(case.loss, axis_name="data")
    mapped = jax.shard_map(loss, mesh=mesh, in_specs=SPLIT, out_specs=WHOLE)
    moved = collectives(jax.jit(mapped).lower(x, y, clusters).compile().as_text())
    assert [move.numbers for move in moved if move.name == "all-gather" and move.numbers > 32] == [
        y.size
    ]
    assert sum(move.numbers for move in moved if move.name == "all-reduce") <= 2 * 16 + 8


@pytest.mark.parametrize("case", {case.name: case for case in CASES}.values(), ids=str)
def test_half_precision_vectors_give_a_float32_loss(case):
    first, second, *rest = batch_of(case, 12, 16, 4)
    batch = (first.astype(jnp.bfloat16), second.astype(jnp.float16), *rest)
    found = value(case, *batch)
    assert found.dtype == jnp.float32
    assert float(found) == pytest.approx(case.expected(*batch)[0], rel=1e-5)


@pytest.mark.parametrize("case", [c for c in PAIRS if c.name != "ranking"], ids=str)
def test_a_large_common_offset_changes_nothing(case):
    batch = pairs(24, 30, 20, offset=1e4)
    check(value_and_gradients(case)(*batch), case.expected(*batch))


@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[8]], ids=str)
def test_without_clusters_every_other_candidate_is_a_negative(case):
    x, y, clusters = pairs(13, 21, 7)
    without = value(case, x, y, None)
    assert float(without) == pytest.approx(case.expected(x, y, np.full(21, -1))[0], rel=1e-5)
    if case.name != "triplet":
        assert without != value(case, x, y, clusters)


def test_cluster_ids_of_any_integer_type():
    case = CASES[0]
    x, y, _ = pairs(3, 5, 4)
    ids = np.array([2**31 - 1, 7, 2**31 - 1, -1, 7])
    expected = value(case, x, y, jnp.asarray(ids, jnp.int32))
    assert value(case, x, y, ids) == value(case, x, y, ids.tolist()) == expected


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[4], CASES[8]], ids=str)
@pytest.mark.parametrize("precision", [None, "high", "default"])
def test_products_have_the_precision_that_is_set(case, precision):
    """Also those of a gradient that is taken where another is set, and in a map."""

    def loss(x, y):
        with jax.default_matmul_precision(precision):
            return case.loss(x, y, None, axis_name="data")

    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    mapped = jax.shard_map(loss, mesh=mesh, in_specs=SPLIT, out_specs=WHOLE)
    gradient = jax.jit(jax.value_and_grad(mapped, argnums=(0, 1)))
    found = dots(gradient, *batch_of(case, 8, 4)[:2], platform="cuda")
    assert {dot.precision for dot in found} == {(precision or "highest").upper()}


@pytest.mark.parametrize("case", PAIRS, ids=str)
@pytest.mark.parametrize("devices", [1, 2])
def test_the_rows_of_a_loss_may_have_any_weights(case, devices):
    """Their gradient is the weighted sum of the gradients of single rows."""
    options = dict(case.options)
    if options.pop("symmetric", False):
        options |= {"both": True, "axis_name": "data"}
    x, y, clusters = pairs(6, 8, 5)

    def loss(x, y, weights):
        def share(x, y, positives, weights):
            y = jax.lax.all_gather(y, "data", tiled=True)
            rows = LOSSES[case.name](x, y, positives, jnp.asarray(clusters), **options)
            return jax.lax.psum((weights * rows).sum(), "data")

        mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
        mapped = jax.shard_map(share, mesh=mesh, in_specs=SPLIT, out_specs=WHOLE)
        return mapped(x, y, jnp.arange(6), weights)

    gradient = jax.jit(jax.grad(loss, (0, 1)))
    weights = jnp.arange(6.0)
    rows = [gradient(x, y, weight) for weight in jnp.eye(6)]
    for found, *slopes in zip(gradient(x, y, weights), *rows, strict=True):
        expected = jnp.tensordot(weights, jnp.stack(slopes), 1)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    # Those of single rows sum up to the gradient of equal weights, which is not computed again.
    for found, *slopes in zip(gradient(x, y, jnp.ones(6)), *rows, strict=True):
        np.testing.assert_allclose(found, sum(slopes), rtol=1e-4, atol=1e-5)


@each_case
def test_vectors_that_coincide_have_finite_gradients(case):
    """Also where a row has no negative: all are of one cluster."""
    first, second, *rest = batch_of(case, 12, 5)
    if case.reads == "pairs":
        rest = [np.zeros(12, np.int32)]
    loss = value_and_gradients(case)
    for scale in (0, 1):
        found, gradients = loss(0 * first + scale, 0 * second + scale, *rest)
        assert np.isfinite(found)
        assert all(np.isfinite(gradient).all() for gradient in gradients)
    if case.reads == "pairs":
        found, gradients = loss(first, second, *rest)
        assert float(found) == pytest.approx(0, abs=1e-5)
        np.testing.assert_allclose(gradients, 0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("queries", [(4, 3), (2, 3)]),
        ("candidates", [(2, 3), (4, 2)]),
        ("queries", [(3,), (3,)]),
        ("clusters", [(2, 3), (4, 3), (2,)]),
    ],
)
def test_shapes_that_do_not_fit_are_named(name, shapes):
    with pytest.raises(ValueError, match=f"`{name}`"):
        batch_loss(losses.sdml_loss, *map(jnp.zeros, shapes))


@pytest.mark.parametrize("case", {case.name: case for case in CASES}.values(), ids=str)
def test_the_examples_of_docstrings_hold(case):
    module = inspect.getmodule(getattr(losses, f"{case.name}_loss"))
    for checked in (module, losses.batch) if case is CASES[0] else (module,):
        found = doctest.testmod(checked, optionflags=doctest.ELLIPSIS, extraglobs={"jnp": jnp})
        assert found.attempted > found.failed == 0
