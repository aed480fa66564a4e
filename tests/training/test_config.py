"""Settings: defaults, files and texts, what is refused, what identifies a run; their losses."""

import functools
import os
import types

import jax
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.losses import (
    batch_loss,
    contrastive_loss,
    distillation_loss,
    listwise_loss,
    mean_loss,
    sdml_loss,
)
from qpr_jax.training import draws
from qpr_jax.training.batches import Batch
from qpr_jax.training.config import TrainConfig, fingerprint, flatten, load_config, override
from qpr_jax.training.objectives import LOSSES, make_objectives, reads, settings_of
from qpr_jax.training.presets import PRESETS
from qpr_jax.training.run import validate
from tests.refused import check_refused

QUESTIONS = {"data.source": "questions", "early_stopping.metric": "agreement"}
TAUGHT = {"teacher.model": "a", "data.parallel": ("en-de:b.tsv",), "text.subwords": True}


def test_the_defaults_are_those_of_the_paper():
    settings = TrainConfig()
    validate(settings)
    expected = {
        "batch_size": 512,
        "loss.smoothing": 0.3,
        "encoder.kernel_sizes": (5,),
        "encoder.embedding_dim": 300,
        "encoder.output_dim": 300,
        "text.vocabulary_size": 50_000,
        "text.hash_bins": 5_000,
        "optimizer.learning_rate": 1e-3,
    }
    assert flatten(settings).items() >= expected.items()


def test_presets_are_valid_as_they_are_and_small():
    for name in PRESETS:
        config, small = load_config(name), load_config(f"{name}:smoke")
        validate(config)
        validate(small)
        assert override(TrainConfig(), flatten(config)) == config
        assert (small.max_steps, small.batch_size, small.data.held_out_pairs) == (12, 32, 200)
        assert small.optimizer.warmup_steps <= 2
        assert small.data.recombined <= 500


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("optimizer.learning_rate", "1e-4", 1e-4),
        ("loss.symmetric", "false", False),
        ("loss.names", "ranking,online_contrastive", ("ranking", "online_contrastive")),
        ("loss.names", '["ranking"]', ("ranking",)),
        ("data.parallel", "()", ()),
        ("encoder.kernel_sizes", "(1, 3, 5)", (1, 3, 5)),
        ("encoder.kernel_sizes", 5, (5,)),
        ("data.path", "2024", "2024"),
        ("teacher.model", "~/$HOME", os.path.expanduser("~") + "/" + os.environ["HOME"]),
    ],
)
def test_a_value_may_be_a_text(name, text, value):
    config = TrainConfig()
    changed = flatten(override(config, {name: text}))[name]
    assert (changed, type(changed)) == (value, type(value))
    assert config == TrainConfig()


def test_a_wrong_value_or_name_is_refused():
    check_refused(
        lambda name, value: override(TrainConfig(), {name: value}),
        ("loss.scale", "nan", "must be a finite number, got 'nan'"),
        ("loss.distance", "l2", "must be 'ssd' or 'euc', got 'l2'"),
        ("bach_size", 3, r"there is no setting `bach_size`; did you mean `batch_size`\?"),
        ("loss", 3, r"there is no setting `loss`; did you mean `loss\.names`\?"),
        ("patience", 3, r"no setting `patience`; did you mean `early_stopping\.patience`\?"),
    )


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"data.source": "web"}, "data.source"),
        ({"index.factory": "IVF2000,PQ301"}, "factory"),
        ({"loss.names": ("sdlm",)}, "loss.names"),
        ({"loss.names": ("sdml", "sdml")}, "loss.names"),
        ({"distributed": True, "devices": 2}, "devices"),
        # What there is to learn from
        ({"max_epochs": 0}, ""),
        ({"data.source": "questions"}, ""),
        ({"early_stopping.metric": "agreement"}, "early_stopping.metric"),
        ({"teacher.model": "a", "teacher.epochs": 0, "max_epochs": 0}, "teacher.epochs"),
        (QUESTIONS | {"teacher.model": "a"}, "max_epochs"),
        (
            {"data.source": "questions", "teacher.model": "a", "max_epochs": 0},
            "early_stopping.metric",
        ),
        # Translations
        (TAUGHT | {"teacher.model": ""}, "data.parallel"),
        ({"early_stopping.metric": "translation"}, "early_stopping.metric"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_each_other_are_named(changes, setting):
    with pytest.raises(UserError) as caught:
        validate(override(TrainConfig(), changes))
    assert caught.value.setting == setting
    assert setting or caught.value.remedy


def test_settings_that_fit_pass():
    for changes in (
        TAUGHT,
        # An encoder to start from has words of its own.
        TAUGHT | {"encoder.pretrained": "c", "text.subwords": False, "batch.subword_dropout": 0.1},
        QUESTIONS | {"teacher.model": "a", "max_epochs": 0},
    ):
        validate(override(TrainConfig(), changes))


def test_a_run_is_not_identified_by_what_does_not_change_its_result():
    settings = TrainConfig()
    before = fingerprint(settings)
    settings.devices, settings.data.path = 4, "elsewhere.tsv"
    assert fingerprint(settings) == before
    settings.seed = 1
    assert fingerprint(settings) != before


def test_files_of_settings(tmp_path):
    path = tmp_path / "mine.toml"
    check_refused(load_config, (str(path), "expected a TOML file of settings, found none"))
    path.write_text("[loss.scale]\nx = 3")
    check_refused(load_config, (str(path), "there is no setting `loss.scale.x`"))
    path.write_text("batch_size = 64\n[loss]\nnames = ['sdml', 'triplet']\nscale = 2\n")
    config = load_config(str(path))
    assert (config.batch_size, config.loss.names) == (64, ("sdml", "triplet"))
    assert config.loss.scale == 2.0
    assert load_config(f"{path}:smoke").batch_size == 32
    # Changes come before the config is shrunk.
    config = load_config("synthetic_sdml:smoke", {"data.source": "quora"})
    assert (config.data.source, config.data.max_rows, config.batch_size) == ("quora", 3000, 32)


VECTORS = np.random.default_rng(0).normal(size=(34, 5)).astype(np.float32)
QUERIES, CANDIDATES, LEFT, RIGHT, LISTS = np.split(VECTORS, (8, 16, 22, 28))
NAMES = ("queries", "candidates", "left", "right", "listed", "hits")
ROWS = dict(zip(NAMES, np.split(np.arange(34), [8, 16, 22, 28, 30]), strict=True))
ROWS["hits"] = ROWS["hits"].reshape(2, 2)
LABELS = np.array([1, 0, 0, 1, 1, 0], np.int32)
CLUSTERS = np.random.default_rng(1).integers(-1, 3, 8).astype(np.int32)
SCORES = np.float32([[1, 0], [-1, 2]])
FACTS = {"labels": LABELS, "clusters": CLUSTERS}
TARGETS = np.roll(VECTORS, 1, axis=0)
BATCH = Batch(None, ROWS, FACTS | {"scores": SCORES}, TARGETS)
KEY = jax.random.key(3)


@pytest.fixture(autouse=True)
def no_draws(monkeypatch):
    """An epoch has ten steps."""
    for name in ("draw_pairs", "draw_labeled", "draw_lists", "draw_questions"):
        monkeypatch.setattr(draws, name, lambda config, data: draws.Draw(None, 10))


def losses_of(changes, *, taught=False):
    """The weighted objectives of the settings on one device, by their steps; compiled whole."""
    splits = types.SimpleNamespace(pairs={"train": [0]})
    dataset = types.SimpleNamespace(teacher=taught, lists=taught, splits=splits)
    objectives = make_objectives(override(TrainConfig(), changes), dataset)

    @jax.jit
    def values(vectors):
        return [o.weight * o.loss(vectors, BATCH, KEY, None) for o in objectives]

    found = {}
    for objective, value in zip(objectives, values(VECTORS), strict=True):
        found.setdefault(objective.steps, {})[objective.name] = float(value)
    return found


SDML = {"smoothing": 0.1, "distance": "euc"}


@pytest.mark.parametrize(
    ("name", "changes", "masked"),
    [
        ("sdml", SDML, True),
        ("triplet", {"margin": 3.0, "distance": "euc", "negatives": "hard"}, True),
        ("ranking", {"smoothing": 0.0}, False),
        ("contrastive", {"margin": 1.3}, False),
        ("online_contrastive", {"margin": 1.3}, False),
    ],
)
def test_every_setting_reaches_the_loss(name, changes, masked):
    assert settings_of(name) == sorted(changes)
    settings = {f"loss.{setting}": value for setting, value in changes.items()}
    settings |= {"loss.names": (name,), "loss.mask_own_cluster": masked, "loss.symmetric": masked}
    loss = functools.partial(LOSSES[name], **changes)

    def expected():
        if reads(name, "labels"):
            return mean_loss(loss, LEFT, RIGHT, LABELS)
        clusters = CLUSTERS if masked else None
        return batch_loss(loss, QUERIES, CANDIDATES, clusters, symmetric=masked)

    found = {name: pytest.approx(float(jax.jit(expected)()))}
    assert losses_of(settings) == {range(100): found}


def test_several_losses_are_weighed():
    changes = {"loss.names": "sdml,contrastive", "loss.scale": 0.5}
    changes |= {"teacher.weight": 3.0, "teacher.lists": 0.7}

    @jax.jit
    def weighed():
        lists = LISTS[:2] / 2, LISTS[2:].reshape(2, 2, 5) / 2, SCORES
        return {
            "sdml": batch_loss(sdml_loss, 0.5 * QUERIES, 0.5 * CANDIDATES),
            "contrastive": mean_loss(contrastive_loss, 0.5 * LEFT, 0.5 * RIGHT, LABELS),
            "distillation": 3 * mean_loss(distillation_loss, VECTORS, TARGETS),
            "lists": 0.7 * mean_loss(listwise_loss, *lists),
        }

    together = {name: pytest.approx(float(loss)) for name, loss in weighed().items()}
    alone = {"distillation": pytest.approx(together["distillation"].expected / 3)}
    assert losses_of(changes, taught=True) == {range(90): alone, range(90, 190): together}
    # Without a teacher there is no distillation.
    assert losses_of({"teacher.weight": 3.0, "max_steps": 7})[range(7)].keys() == {"sdml"}
