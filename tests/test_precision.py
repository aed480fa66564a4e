import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from qpr_jax.losses import ranking_loss, sdml_loss, triplet_loss
from qpr_jax.precision import PRECISIONS, available, resolve
from qpr_jax.tuning import CPU, GPU, OLD_GPU, TPU, Tuning, default_tuning, platform_of
from tests.lowered import dots

ALGORITHMS = {"highest": "HIGHEST", "bf16_3x": "bf16 x3", "tf32": "tf32 x1", "bf16": "bf16 x1"}
LOSSES = {
    "sdml": lambda x, y, **given: sdml_loss(x, y, **given),
    "sdml dense": lambda x, y, **given: sdml_loss(x, y, tile=None, symmetric=True, **given),
    "sdml euc": lambda x, y, **given: sdml_loss(x, y, distance="euc", **given),
    "sdml tiles": lambda x, y, **given: sdml_loss(x, y, prior="distance", tile=4, **given),
    "ranking": lambda x, y, **given: ranking_loss(x, y, symmetric=True, **given),
    "triplet": lambda x, y, **given: triplet_loss(x, y, negatives="hard", **given),
}


def pairs(count=8, dim=5):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal((count, dim)), jnp.float32) for _ in range(2)]


@pytest.mark.parametrize(
    ("platform", "names"),
    [
        (CPU, ["highest"]),
        (GPU, [*PRECISIONS]),
        (OLD_GPU, ["highest"]),
        (TPU, ["highest", "bf16_3x", "bf16"]),
        ("METAL", ["highest"]),
    ],
)
def test_a_platform_has_some_and_is_highest_for_the_others(platform, names):
    assert [name for name in PRECISIONS if available(name, platform)] == names
    for name in PRECISIONS:
        found = resolve(name, platform=platform)
        assert (found == lax.Precision.HIGHEST) == (name not in names or name == "highest")


def test_names_are_algorithms_and_values_for_jax_stay():
    assert [resolve(name, platform=GPU) for name in PRECISIONS[1:]] == [
        lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
        lax.DotAlgorithmPreset.TF32_TF32_F32,
        lax.DotAlgorithmPreset.BF16_BF16_F32,
    ]
    for value in (None, lax.Precision.HIGH, lax.DotAlgorithmPreset.F32_F32_F32):
        assert resolve(value, platform=GPU) == value
        assert resolve(value, platform=GPU, dtype="float64") == lax.Precision.HIGHEST
    assert resolve("bf16", platform=GPU, dtype=jnp.dtype("float64")) == lax.Precision.HIGHEST
    assert resolve("bf16") == lax.Precision.HIGHEST  # of the CPU that is here


@pytest.mark.parametrize("name", ["HIGHEST", "float32", ""])
def test_a_wrong_name_is_refused_with_the_names(name):
    expected = r"one of highest, bf16_3x, tf32, bf16, got "
    with pytest.raises(ValueError, match=expected):
        resolve(name)
    for loss in LOSSES.values():
        with pytest.raises(ValueError, match=expected):
            loss(*pairs(), precision=name)


@pytest.mark.parametrize(
    ("platform", "capability", "expected"),
    [
        ("cpu", None, CPU),
        ("gpu", "9.0", GPU),
        ("cuda", "8.0", GPU),
        ("gpu", "7.5", OLD_GPU),
        ("rocm", "gfx942", GPU),
        ("gpu", None, GPU),
        ("tpu", None, TPU),
    ],
)
def test_the_platform_of_a_device(platform, capability, expected):
    device = SimpleNamespace(platform=platform)
    if capability:
        device.compute_capability = capability
    assert platform_of(device) == expected


def test_names_load_no_jax():
    code = "import sys, qpr_jax.precision, qpr_jax.training.config; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert done.stdout == b"False\n"


@pytest.mark.parametrize(
    ("platform", "lowered_for"),
    [
        (GPU, "cuda"),
        pytest.param(TPU, "tpu", marks=pytest.mark.slow),
        pytest.param(CPU, "cpu", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_products_of_a_loss_and_of_its_gradient_have_the_precision(loss, platform, lowered_for):
    for name in PRECISIONS:

        def value(x, y, name=name):
            return loss(x, y, precision=name, tuning=Tuning(platform))

        step = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))
        expected = ALGORITHMS[name if available(name, platform) else "highest"]
        assert {dot.precision for dot in dots(step, *pairs(), platform=lowered_for)} == {expected}


def test_a_loss_alone_has_the_platform_of_the_first_device():
    assert default_tuning() == Tuning(CPU)
    x, y = pairs()
    for name in PRECISIONS:
        assert sdml_loss(x, y, precision=name) == sdml_loss(x, y)
