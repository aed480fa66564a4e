"""The fused kernels: interpreted on a CPU, against float64, and lowered for a GPU."""

import logging
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.losses import ranking_loss, sdml_loss
from qpr_jax.losses.dispatch import PALLAS_PLATFORMS, choose_method
from qpr_jax.losses.pallas_blocks import (
    SHARED_MEMORY,
    block_sizes,
    chunks,
    padded_width,
    precision_name,
    shared_memory,
)
from qpr_jax.tuning import Tuning
from tests.losses import references
from tests.losses.references import sdml_reference, slow

PRECISIONS = ("highest", "bf16_3x", "tf32", "bf16")
# Of the value and of a gradient's largest element, where vectors are near their center.
TOLERANCES = {"highest": 1e-5, "bf16_3x": 1e-4, "tf32": 2e-3, "bf16": 2e-2}
KERNEL = "__gpu$xla.gpu.triton"


@pytest.fixture(autouse=True)
def _as_users_have_them():
    """What is compiled here is compiled quickly: nobody trains with interpreted kernels."""


def with_options(**options):
    """sdml_loss by kernels as a function of queries, candidates and clusters."""
    return lambda x, y, clusters=None, **more: sdml_loss(
        x, y, clusters=clusters, implementation="pallas", **options, **more
    )


def graded(loss):
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def check(loss, arguments, options):
    """The value within 1e-5, and the gradients within 1e-4: sums of products are long ones."""
    value, gradients = loss(*arguments)
    expected = sdml_reference(*arguments, **options)
    references.check((value, gradients), expected, 1e-4)
    assert abs(float(value) - expected[0]) <= 1e-5 * (1 + abs(expected[0]))


@pytest.mark.parametrize(
    ("shape", "clustered", "options"),
    [
        ((13, 21, 7), 21, {"symmetric": True}),
        ((1, 1, 3), 0, {"symmetric": True}),
        ((70, 150, 300), 0, {"smoothing": 0.0}),
        ((70, 75, 3), 70, {"distance": "dot", "symmetric": True}),
        slow((130, 130, 100), 130, {"distance": "dot", "smoothing": 0.0}),
        slow((300, 333, 300), 333, {"symmetric": True}),
    ],
    ids=str,
)
def test_value_and_gradient_are_those_of_the_reference(shape, clustered, options, batch):
    """Rows that fill no block, one pair, extra candidates, clusters with -1, vectors off-center."""
    loss = graded(with_options(**options))
    for offset in (0.0, 1.0 if "distance" in options else 1e3):
        x, y, clusters = batch(max(shape[0], 3), max(shape[1], 3), shape[2], offset=offset)
        arguments = (x[: shape[0]], y[: shape[1]], *([clusters[:clustered]] * bool(clustered)))
        check(loss, arguments, options)


@pytest.mark.parametrize("precision", ["highest", "bf16_3x", slow("tf32"), "bf16"])
def test_each_precision_is_as_accurate_as_its_bits(precision, batch):
    """Operands are rounded on a CPU too; a coarser precision is not mistaken for a finer one."""
    options = {"symmetric": True, "smoothing": 0.2}
    x, y, clusters = batch(20, 24, 40)
    value, gradients = graded(with_options(**options, precision=precision))(x, y, clusters)
    expected = sdml_reference(x, y, clusters, **options)
    references.check((value, gradients), expected, TOLERANCES[precision])
    error = max(
        np.abs(have - want).max() / np.abs(want).max()
        for have, want in zip(gradients, expected[1:], strict=True)
    )
    assert error > {"highest": 0, "bf16_3x": 4e-7, "tf32": 1e-5, "bf16": 1e-4}[precision]


@pytest.mark.parametrize("symmetric", [False, slow(True)])
def test_two_groups_far_apart(symmetric):
    """Slopes multiply differences of vectors: how far these lie from the center is no matter."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 16)), rng.normal(size=(50, 16))
    y[:40] = x + 0.5 * rng.normal(size=(40, 16))
    x[::2, 0] += 100
    y[::2, 0] += 100
    arguments = [jnp.asarray(side / 2, jnp.float32) for side in (x, y)]
    check(graded(with_options(symmetric=symmetric)), arguments, {"symmetric": symmetric})


def test_what_is_not_a_number_shows(batch):
    x, y, _ = batch(6, 6, 4)
    value, _ = graded(with_options())(x.at[2, 1].set(jnp.nan), y)
    assert np.isnan(value)


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (2, {"symmetric": True, "smoothing": 0.2}),
        (4, {"distance": "dot"}),
        slow(4, {"symmetric": True}),
        slow(8, {"symmetric": True, "distance": "dot", "smoothing": 0.0}),
    ],
)
def test_mapped_over_devices_it_is_the_loss_of_the_global_batch(devices, options, mapped, batch):
    check(mapped(with_options(**options), devices), batch(16, 24, 10), options)


def test_an_unchecked_map_runs_the_interpreter_itself(batch):
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    split = PartitionSpec("data")
    loss = jax.shard_map(
        with_options(symmetric=True, axis_name="data"),
        mesh=mesh,
        in_specs=(split, split, split),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    check(graded(loss), batch(16, 16, 10), {"symmetric": True})


def test_the_ranking_loss_has_it_too(batch):
    x, y, clusters = batch(9, 12, 5)
    given = {"clusters": clusters, "symmetric": True, "smoothing": 0.1}
    expected = float(ranking_loss(x, y, **given))
    value = jax.jit(lambda x, y: ranking_loss(x, y, implementation="pallas", **given))(x, y)
    assert float(value) == pytest.approx(expected, rel=1e-5)


def lowered(loss, *arguments):
    """The text of value and gradient as compiled for a GPU."""
    traced = graded(loss).trace(*arguments)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


def sizes(text):
    """Numbers of elements of all arrays outside the kernels."""
    return {
        math.prod(int(size) for size in shape.split("x") if size)
        for shape in re.findall(r"tensor<((?:\d+x)+)", text)
    }


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_it_lowers_for_a_gpu_without_products_or_scores_outside_the_kernels(precision, symmetric):
    n, extra, d = 1000, 24, 12
    x, y = (jax.ShapeDtypeStruct((rows, d), jnp.float32) for rows in (n, n + extra))
    clusters = jax.ShapeDtypeStruct((n + extra,), jnp.int32)
    loss = with_options(symmetric=symmetric, precision=precision)
    text = lowered(loss, x, y, clusters)
    assert text.count(KERNEL) == (4 if symmetric else 3)
    assert "stablehlo.dot" not in text
    assert max(sizes(text)) <= (n + extra) * padded_width(d)


def test_it_lowers_for_a_gpu_at_real_size_and_through_a_map():
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    split = PartitionSpec("data")
    loss = jax.shard_map(
        with_options(axis_name="data", symmetric=True, precision="bf16"),
        mesh=mesh,
        in_specs=(split, split),
        out_specs=PartitionSpec(),
    )
    n, d = 65536, 300
    x = jax.ShapeDtypeStruct((n, d), jnp.float32)
    text = lowered(loss, x, x)
    assert text.count(KERNEL) == 4
    assert "stablehlo.dot" not in text
    # What every device has of all is, outside of the map, an array of each device's.
    assert max(sizes(text)) <= 4 * n * padded_width(d)


def test_64_bits_change_nothing(batch):
    x, y, clusters = batch(6, 8, 4)
    with jax.enable_x64(True):
        check(graded(with_options()), (x, y, clusters), {})
        with pytest.raises(
            ValueError, match=r'expected `implementation` "xla".*lacks float64 vectors'
        ):
            with_options()(x.astype(jnp.float64), y.astype(jnp.float64))
        assert KERNEL in lowered(with_options(), x, y, clusters)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_blocks_fit_the_shared_memory_of_a_gpu(precision):
    for d in range(1, 769):
        width = padded_width(d)
        blocks = block_sizes(width, precision)
        assert shared_memory(blocks, width, precision) <= SHARED_MEMORY == 99 * 1024
        assert 16 <= blocks.others <= 128
        assert 128 % blocks.anchors == 128 % blocks.others == 0
        widths = [chunk for _, chunk in chunks(width)]
        assert sum(widths) == width >= d
        assert all(chunk >= 16 and chunk.bit_count() == 1 for chunk in widths)


def test_vectors_too_long_for_any_block_are_refused():
    x = jnp.zeros((2, 3000))
    with pytest.raises(ValueError, match=r'got 3008 columns.*use implementation="xla"'):
        with_options()(x, x)


def test_it_is_opt_in_until_it_has_run_on_a_gpu():
    assert PALLAS_PLATFORMS == ()
    given = {"distance": "ssd", "prior": "uniform"}
    assert choose_method("auto", 512, 512, tuning=Tuning("gpu"), **given).name == "tiled_softmax"
    given |= {"implementation": "pallas", "tuning": Tuning("gpu")}
    method = choose_method("auto", 512, 512, **given)
    assert (method.name, str(method)) == ("pallas_softmax", "in a fused kernel")


def test_an_interpreted_kernel_says_that_it_is_slow(caplog):
    x = jax.ShapeDtypeStruct((4, 3), jnp.float32)
    with caplog.at_level(logging.WARNING):
        jax.eval_shape(with_options(), x, x)
    assert "a CPU interprets the kernel, which is slow" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"distance": "euc"},
            'expected `implementation` "xla".*lacks the distance euc, got "pallas"',
        ),
        ({"prior": "distance"}, 'expected `implementation` "xla".*lacks the prior distance'),
        ({"tile": 0}, 'expected `tile` to be "auto", None or 1 and more rows, got 0'),
        (
            {"precision": "half"},
            "expected `precision` to be one of highest, bf16_3x, .* got 'half'",
        ),
    ],
)
def test_what_the_kernels_lack_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        with_options(**options)(jnp.zeros((2, 3)), jnp.zeros((4, 3)))


def test_a_tpu_is_refused():
    with pytest.raises(
        ValueError, match=r'expected `implementation` "xla".*lacks the platform tpu'
    ):
        sdml_loss(
            jnp.zeros((2, 3)),
            jnp.zeros((2, 3)),
            distance="dot",
            implementation="pallas",
            tuning=Tuning("tpu"),
        )
    with pytest.raises(ValueError, match="expected `implementation` to be one of auto, xla, pall"):
        sdml_loss(jnp.zeros((2, 3)), jnp.zeros((2, 3)), implementation="cuda")


def test_precisions_of_jax_have_the_names_of_what_a_gpu_does():
    assert precision_name(jax.lax.Precision.HIGHEST) == "highest"
    assert precision_name(None) == precision_name(jax.lax.Precision.HIGH) == "tf32"
    assert precision_name(jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3) == "bf16_3x"
