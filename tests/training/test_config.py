"""Settings: defaults, files and texts, what is refused, and what identifies a run."""

import re

import pytest
from pydantic import ValidationError

from qpr_jax.errors import UserError
from qpr_jax.training.checks import validate
from qpr_jax.training.config import TrainConfig, flatten, identity, load_config, override
from qpr_jax.training.presets import PRESETS

QUESTIONS = {"data.source": "questions", "early_stopping.metric": "agreement"}
ADDED = flatten(load_config("add_language")) | {"encoder.pretrained": "a"}
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
        assert load_config(f"{name}_smoke") == small
        validate(config)
        validate(small)
        assert override(TrainConfig(), flatten(config)) == config
        assert (small.max_steps, small.batch_size, small.data.held_out_pairs) == (12, 32, 200)
        assert small.optimizer.warmup_steps <= 2
        assert small.data.spliced <= 500


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("optimizer.learning_rate", "1e-4", 1e-4),
        ("loss.symmetric", "false", False),
        ("loss.names", "ranking,online_contrastive", ("ranking", "online_contrastive")),
        ("loss.names", '["ranking"]', ("ranking",)),
        ("loss.weights", "()", ()),
        ("encoder.kernel_sizes", "(1, 3, 5)", (1, 3, 5)),
        ("encoder.kernel_sizes", 5, (5,)),
        ("data.path", "2024", "2024"),
    ],
)
def test_a_value_may_be_a_text(name, text, value):
    config = TrainConfig()
    changed = flatten(override(config, {name: text}))[name]
    assert (changed, type(changed)) == (value, type(value))
    assert config == TrainConfig()


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("batch_size", "many", "must be a valid integer, got 'many'"),
        ("batch_size", 0, "must be greater than or equal to 1, got 0"),
        ("loss.scale", "nan", "must be a finite number, got 'nan'"),
        ("loss.distance", "l2", "must be 'ssd' or 'euc', got 'l2'"),
        ("loss.weights", (0.0,), "must be greater than 0, got 0.0"),
        ("encoder.kernel_sizes", (), "must have at least 1 item, got ()"),
        ("bach_size", 3, "there is no setting `bach_size`; did you mean `batch_size`?"),
        ("loss", 3, "there is no setting `loss`; did you mean `loss.names`?"),
        ("patience", 3, "no setting `patience`; did you mean `early_stopping.patience`?"),
    ],
)
def test_a_wrong_value_or_name_is_refused(name, value, rule):
    with pytest.raises(UserError, match=re.escape(rule)):
        override(TrainConfig(), {name: value})


def test_assigning_a_wrong_value_or_name_is_refused():
    config = TrainConfig()
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        config.loss.smoothing = 1.1
    with pytest.raises(ValidationError, match="no_such"):
        config.loss.no_such = 1.1


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"data.source": "web"}, "data.source"),
        ({"index.factory": "IVF2000,PQ301"}, "factory"),
        ({"loss.names": ("sdlm",)}, "loss.names"),
        ({"loss.names": ("sdml", "sdml")}, "loss.names"),
        ({"loss.weights": (1.0, 2.0)}, "loss.weights"),
        ({"batch.subword_dropout": 0.1}, "batch.subword_dropout"),
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
        (ADDED | {"encoder.kind": "bert"}, "text.added_words"),
        (ADDED | {"data.parallel": ()}, "text.added_words"),
        (ADDED | {"max_epochs": 2}, "max_epochs"),
        # Translations
        (TAUGHT | {"teacher.model": ""}, "data.parallel"),
        ({"batch.translations": 0.25}, "batch.translations"),
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
        ADDED | {"data.parallel": ("en-de:b.tsv",)},
        TAUGHT,
        TAUGHT | {"batch.translations": 0.25, "batch.subword_dropout": 0.1, "data.glossed": 2},
        # An encoder to start from has words of its own.
        TAUGHT | {"encoder.pretrained": "c", "text.subwords": False, "batch.subword_dropout": 0.1},
        QUESTIONS | {"teacher.model": "a", "max_epochs": 0},
    ):
        validate(override(TrainConfig(), changes))


def test_a_run_is_not_identified_by_what_does_not_change_its_result():
    settings = TrainConfig()
    before = identity(settings)
    settings.devices, settings.data.path = 4, "elsewhere.tsv"
    assert identity(settings) == before
    settings.seed = 1
    assert identity(settings) != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected a TOML file of settings, found none"),
        ("batch_size = ", "expected TOML, got"),
        (f"batch_size = {'[' * 50_000}", "expected TOML, got maximum recursion"),
        ("[loss]\nnames = 3", "`loss.names`: must be a valid string, got 3"),
        ("[loss.scale]\nx = 3", "there is no setting `loss.scale.x`"),
    ],
)
def test_a_wrong_file_of_settings_is_refused(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_config(str(path))


def test_files_of_settings(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("batch_size = 64\n[loss]\nnames = ['sdml', 'triplet']\nscale = 2\n")
    config = load_config(str(path))
    assert (config.batch_size, config.loss.names) == (64, ("sdml", "triplet"))
    assert config.loss.scale == 2.0
    assert load_config(f"{path}:smoke").batch_size == 32


def test_changes_come_before_the_config_is_shrunk():
    config = load_config("synthetic_sdml:smoke", {"data.source": "quora"})
    assert (config.data.source, config.data.max_rows, config.batch_size) == ("quora", 3000, 32)
