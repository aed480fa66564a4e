"""The constants of each platform, and the programs that they make."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from qpr_jax.losses import sdml_loss
from qpr_jax.losses.dispatch import choose_method
from qpr_jax.models.cnn import ConvEncoder
from qpr_jax.training.checks import unused_settings
from qpr_jax.training.config import TrainConfig, TuningConfig, identity
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.overrides import load_config, override
from qpr_jax.training.stages import build_plan, init_model
from qpr_jax.tuning import CPU, GPU, OLD_GPU, TPU, Tuning
from tests.lowered import dots

SIZES = (512, 4096, 32_768, 262_144)
PLATFORMS = {CPU: "cpu", GPU: "cuda", TPU: "tpu"}


@pytest.mark.parametrize(
    ("platform", "tiles"),
    [
        (CPU, [512, 512, 256, 64]),
        (GPU, [512, 4096, 8192, 1024]),
        (OLD_GPU, [512, 4096, 8192, 1024]),
        (TPU, [512, 4096, 4096, 512]),
    ],
)
def test_rows_of_a_tile(platform, tiles):
    tuning = Tuning(platform)
    given = {"distance": "ssd", "prior": "uniform", "tuning": tuning}
    assert [choose_method("auto", n, n, **given).tile for n in SIZES] == tiles
    assert [choose_method(100, n, n, **given).tile for n in SIZES] == [100] * 4
    given["tuning"] = tuning._replace(tile_rows=700)
    assert [choose_method("auto", n, n, **given).tile for n in SIZES] == [512, 700, 700, 700]
    # A tile is at most 1 GiB of scores, but where a device would be left idle.
    assert all(n * rows <= 1 << 28 for n, rows in zip(SIZES, tiles, strict=True))


@pytest.mark.parametrize(
    ("platform", "all_at_once"), [(CPU, [1, 1, 0, 0]), (GPU, [1, 1, 0, 0]), (TPU, [1, 1, 0, 0])]
)
def test_losses_without_a_gradient_by_hand_hold_all_scores_while_they_are_few(
    platform, all_at_once
):
    given = {"distance": "euc", "prior": "uniform"}
    for n, whole in zip(SIZES, all_at_once, strict=True):
        method = choose_method("auto", n, n, tuning=Tuning(platform), **given)
        assert (method.tile is None) == bool(whole)
        method = choose_method("auto", n, n, tuning=Tuning(platform, tile_rows=64), **given)
        assert (method.name, method.tile) == ("autodiff_tiles", 64)


def test_the_other_constants():
    def sums(platform, **changes):
        tuning = Tuning(platform, **changes)
        return [-(-300 // tuning.sum_length(n, n, 300)) for n in (512, 2048, 4096)]

    assert [sums(platform) for platform in PLATFORMS] == [[5, 2, 1], [1, 1, 1], [1, 1, 1]]
    assert [sums(platform, product_terms=3) for platform in PLATFORMS] == [[3, 3, 3]] * 3
    assert [Tuning(platform).scores_of_encoder() for platform in PLATFORMS] == [
        1 << 23,
        1 << 28,
        1 << 27,
    ]
    assert Tuning(GPU, encoder_scores=9).scores_of_encoder() == 9
    assert [Tuning(GPU, donate=given).donates() for given in ("auto", "yes", "no")] == [1, 1, 0]
    assert [Tuning(p).constants.encode_tokens for p in PLATFORMS] == [1024, 65_536, 65_536]


@pytest.mark.parametrize("options", [{}, {"tile": None}, {"distance": "euc", "tile": None}])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_number_of_products_in_the_lowered_loss(platform, options):
    """Of the forward pass and of the gradient: two for each, or two in all if made by hand."""

    def count(tuning):
        def value(x, y):
            return sdml_loss(x, y, tuning=tuning, **options)

        side = jax.ShapeDtypeStruct((512, 300), jnp.float32)
        step = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))
        return len(dots(step, side, side, platform=PLATFORMS[platform]))

    each = 3 if options else 1
    for tuning, terms in (
        (Tuning(platform), 5 if platform == CPU else 1),
        (Tuning(platform, product_terms=3), 3),
    ):
        ways = 1 if options.get("distance") == "euc" else 2  # of far groups, and of other vectors
        assert count(tuning) == ways * (each * terms + (0 if options else 2))


@pytest.mark.parametrize(("rows", "expected"), [(0, 2048), (512, 512)])
def test_the_tile_in_the_lowered_loss(rows, expected):
    def value(x, y):
        return sdml_loss(x, y, tuning=Tuning(GPU, tile_rows=rows))

    side = jax.ShapeDtypeStruct((2048, 8), jnp.float32)
    found = dots(jax.jit(jax.grad(value)), side, side, platform="cuda")
    either = [("2048x8xf32", f"8x{expected}xf32"), ("8x2048xf32", f"2048x{expected}xf32")]
    assert {dot[:2] for dot in found} == set(either)


def test_on_a_cpu_the_numbers_are_those_of_the_cpu():
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.standard_normal((64, 300)), jnp.float32) for _ in range(2))
    found = [jax.value_and_grad(sdml_loss)(x, y, tuning=t) for t in (None, Tuning(CPU))]
    jax.tree.map(np.testing.assert_array_equal, *found)
    other = jax.value_and_grad(sdml_loss)(x, y, tuning=Tuning(GPU))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5), found[0], other)


def test_scores_of_the_encoder_in_the_lowered_step():
    """Questions are processed three at a time where no more fit."""

    def shapes(**changes):
        model = ConvEncoder(
            vocabulary_size=9, embedding_dim=4, filters=10, rngs=nnx.Rngs(0), **changes
        )
        encode = jax.jit(lambda ids: model(ids))
        ids = jnp.ones((12, 7), jnp.int32)
        text = encode.trace(ids).lower(lowering_platforms=("cuda",)).as_text()
        return {int(count) for count in re.findall(r"tensor<(\d+)x7x10xf32>", text)}

    assert shapes() == {12}
    assert shapes(max_scores=3 * 7 * 10 + 5) == {3}


def test_settings_reach_the_training():
    config = load_config("synthetic_sdml:smoke")
    changes = {
        "tuning.tile_rows": 4,
        "tuning.encoder_scores": 1000,
        "tuning.product_terms": 2,
        "tuning.donate": "no",
    }
    changed = override(config, changes)
    assert identity(changed) == identity(config)  # a run may go on with others
    assert unused_settings(changed) == []
    dataset = load_dataset(config, None, None)
    texts = {}
    for name, given in (("default", config), ("changed", changed)):
        plan = build_plan(given, dataset)
        (loader, train), _ = plan.objective_at(0)
        batch = loader.layout(0).placed(plan.mesh)
        found = dots(train.step.jitted, plan.state, batch, platform="cuda")
        lowered = train.step.jitted.trace(plan.state, batch).lower().as_text()
        texts[name] = len(found), "tf.aliasing_output" in lowered or "donor" in lowered
    assert texts["default"][1]
    assert not texts["changed"][1]
    assert texts["changed"][0] != texts["default"][0]
    graph, _ = init_model(config, dataset, Tuning(CPU, encoder_scores=1000))
    assert "1000" in str(graph)


def test_settings_that_nothing_reads():
    changes = {"tuning.tile_rows": 4, "tuning.product_terms": 2}
    labeled = {"loss.names": ("contrastive",)}
    config = override(load_config("quora_sdml"), changes | labeled)
    assert unused_settings(config) == [*changes]
    bert = {"encoder.kind": "bert", "encoder.pretrained": "x", "tuning.encoder_scores": 5}
    assert "tuning.encoder_scores" in unused_settings(override(load_config("quora_sdml"), bert))


def test_the_section_and_the_tuning_have_the_same_names():
    names = TuningConfig.model_fields
    assert Tuning(CPU, **TrainConfig().tuning.model_dump()) == Tuning(CPU)
    assert Tuning._fields == ("platform", *names)
