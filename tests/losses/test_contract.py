"""What holds for every loss of the registry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax import losses
from qpr_jax.losses import (
    contrastive_loss,
    imitation_loss,
    listwise_loss,
    ranking_loss,
    sdml_loss,
    triplet_loss,
)
from tests.losses.cases import (
    CASES,
    PAIRS,
    Case,
    batch_of,
    check,
    over_devices,
    pairs,
    value,
    value_and_gradients,
)
from tests.lowered import dots

each_case = pytest.mark.parametrize("case", CASES, ids=str)


def test_every_loss_is_here():
    assert {f"{case.name}_loss" for case in CASES} == {*losses.__all__}


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


MAPS = [(case, 8, True) for case in CASES] + [(CASES[1], 2, True)]
MAPS += [(case, 4, False) for case in (CASES[1], CASES[6])]


@pytest.mark.parametrize(("case", "devices", "checked"), MAPS)
def test_any_number_of_devices_gives_the_same(case, devices, checked):
    batch = batch_of(case, 16, 10, 8)
    check(over_devices(case.loss, devices, batch, check_vma=checked), case.expected(*batch))


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


@pytest.mark.parametrize("case", [CASES[1], CASES[6], CASES[10]], ids=str)
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
    with pytest.raises(ValueError, match="fit int32"):
        case.loss(x, y, np.array([1, 1 + 2**32, 2]))


@pytest.mark.parametrize("name", ["sdml", "ranking", "triplet"])
def test_products_have_the_precision_that_is_asked_for(name):
    options = {"negatives": "hard"} if name == "triplet" else {}
    for precision in ("highest", "high", "default"):
        case = Case(name, options | {"precision": precision}, None)
        found = dots(value_and_gradients(case), *batch_of(case, 8, 4), platform="cuda")
        assert {dot.precision for dot in found} == {precision.upper()}


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


OF_PAIRS = (jnp.zeros((2, 3)), jnp.zeros((4, 3)))
LABELED = (jnp.zeros((4, 3)), jnp.zeros((4, 3)), jnp.zeros(4))
TARGETS = (jnp.zeros((4, 3)), jnp.zeros((3, 3)))


@pytest.mark.parametrize(
    ("loss", "given", "options"),
    [
        *((loss, OF_PAIRS[::-1], {}) for loss in (sdml_loss, ranking_loss, triplet_loss)),
        (sdml_loss, (jnp.zeros((0, 4)),) * 2, {}),
        (sdml_loss, OF_PAIRS, {"smoothing": 1.5}),
        (sdml_loss, OF_PAIRS, {"distance": "dot"}),
        (sdml_loss, OF_PAIRS, {"prior": "flat"}),
        (sdml_loss, OF_PAIRS, {"clusters": np.zeros(3, int)}),
        (sdml_loss, OF_PAIRS, {"clusters": jnp.zeros(4)}),
        (ranking_loss, OF_PAIRS, {"smoothing": -1}),
        *((ranking_loss, OF_PAIRS, {"similarity_scale": scale}) for scale in (0.0, float("nan"))),
        (triplet_loss, OF_PAIRS, {"distance": "cosine"}),
        (triplet_loss, OF_PAIRS, {"negatives": "soft"}),
        (triplet_loss, OF_PAIRS, {"margin": -1.0}),
        (triplet_loss, OF_PAIRS, {"key": None}),
        (contrastive_loss, LABELED, {"margin": -1.0}),
        (contrastive_loss, (*TARGETS, jnp.zeros(4)), {"left": None}),
        (contrastive_loss, (*LABELED[:2], jnp.zeros((4, 1))), {"labels": None}),
        (imitation_loss, TARGETS, {"targets": None}),
        (listwise_loss, (TARGETS[0], jnp.zeros((4, 2, 3)), jnp.zeros((4, 3))), {"scores": None}),
    ],
)
def test_mistakes_are_named(loss, given, options):
    """`options` are what is wrong; None: an argument by position or one that is left out."""
    (name,) = options or ["queries"]
    options = {name: value for name, value in options.items() if value is not None}
    with pytest.raises(ValueError, match=f"`{name}`"):
        loss(*given, **options)
