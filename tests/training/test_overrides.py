import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.checks import validate
from qpr_jax.training.config import TrainConfig, flatten
from qpr_jax.training.overrides import from_flat, load_config, override
from qpr_jax.training.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_as_they_are_and_small(name):
    config, small = load_config(name), load_config(f"{name}:smoke")
    assert load_config(f"{name}_smoke") == small
    validate(config)
    validate(small)
    assert small.data.held_out_pairs == 200
    if config.max_epochs or config.teacher.model or config.text.added_words:
        assert (small.max_steps, small.batch_size) == (12, 32)
        assert small.optimizer.warmup_steps <= 2
        assert small.data.spliced <= 500
    else:
        assert small.batch_size == config.batch_size


def test_a_config_is_read_back_from_its_flat_settings():
    config = load_config("quora_multitask")
    assert from_flat(flatten(config)) == config
    changed = override(config, {"batch_size": 7})
    assert (changed.batch_size, config.batch_size) == (7, 1024)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("batch_size", "2048", 2048),
        ("optimizer.learning_rate", "1e-4", 1e-4),
        ("loss.scale", "3", 3.0),
        ("loss.symmetric", "True", True),
        ("loss.symmetric", "false", False),
        ("loss.names", "ranking,online_contrastive", ("ranking", "online_contrastive")),
        ("loss.names", "ranking", ("ranking",)),
        ("loss.names", '["ranking"]', ("ranking",)),
        ("loss.weights", "1,0.5", (1.0, 0.5)),
        ("loss.weights", "()", ()),
        ("encoder.kernel_sizes", "(1, 3, 5)", (1, 3, 5)),
        ("encoder.kernel_sizes", "5", (5,)),
        ("data.path", "2024", "2024"),
        ("data.path", "a b.tsv", "a b.tsv"),
        ("data.path", "", ""),
    ],
)
def test_a_value_is_read_from_a_word(name, text, value):
    config = override(TrainConfig(), {name: text})
    assert flatten(config)[name] == value
    assert type(flatten(config)[name]) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("batch_size", "many", "must be a valid integer, got 'many'"),
        ("batch_size", 0, "must be greater than or equal to 1, got 0"),
        ("batch_size", 1.5, "must be a valid integer, got 1.5"),
        ("seed", 2**32, "must be less than 4294967296, got 4294967296"),
        ("loss.scale", "nan", "must be a finite number, got 'nan'"),
        ("loss.symmetric", 2, "must be a valid boolean, got 2"),
        ("loss.distance", "l2", "must be 'ssd' or 'euc', got 'l2'"),
        ("loss.weights", (0.0,), "must be greater than 0, got 0.0"),
        ("batch.token_dropout", 1.0, "must be less than 1, got 1.0"),
        ("data.path", 1, "must be a valid string, got 1"),
        ("encoder.kernel_sizes", "1.5", "must be a valid integer, got '1.5'"),
        ("encoder.kernel_sizes", (), "must have at least 1 item, got ()"),
    ],
)
def test_a_wrong_value_is_refused(name, value, rule):
    with pytest.raises(UserError) as caught:
        override(TrainConfig(), {name: value})
    assert (caught.value.setting, caught.value.what) == (name, rule)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("bach_size", "batch_size"),
        ("loss", "loss.names"),
        ("teacher", "teacher.model"),
        ("patience", "early_stopping.patience"),
        ("lose.scale", "loss.scale"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name, near):
    with pytest.raises(UserError, match=f"no setting `{name}`; did you mean `{near}`?"):
        override(TrainConfig(), {name: 3})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_size = ", "expected TOML, got"),
        (f"batch_size = {'[' * 50_000}", "expected TOML, got values nested too deeply"),
        ("batch_size = 'x'", "must be a valid integer, got 'x'"),
        ("[loss]\nnames = 3", "`loss.names`: must be a valid string, got 3"),
        ("[lose]\nscale = 3", "there is no setting `lose.scale`; did you mean `loss.scale`?"),
        ("[loss.scale]\nx = 3", "there is no setting `loss.scale.x`"),
    ],
)
def test_a_wrong_file_of_settings_is_refused(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_config(str(path))


def test_files_of_settings(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("batch_size = 64\n[loss]\nnames = ['sdml', 'triplet']\nscale = 2\n")
    config = load_config(str(path))
    assert (config.batch_size, config.loss.names, config.loss.scale) == (
        64,
        ("sdml", "triplet"),
        2.0,
    )
    assert load_config(f"{path}:smoke").batch_size == 32
    with pytest.raises(UserError, match="expected a TOML file of settings, found none"):
        load_config(str(tmp_path / "none.toml"))
    python = tmp_path / "mine.py"
    python.write_text("def get_config():\n    return 3\n")
    with pytest.raises(UserError, match="that returns a `TrainConfig`"):
        load_config(str(python), python_files=True)
    with pytest.raises(UserError, match="or the path of a TOML file, got"):
        load_config(str(python))


def test_changes_come_before_the_config_is_shrunk():
    config = load_config("synthetic_sdml:smoke", {"data.source": "quora"})
    assert (config.data.source, config.data.max_rows, config.batch_size) == ("quora", 3000, 32)


def test_imitation_of_a_smoke_run_is_short():
    changes = {"teacher.min_steps": 3000}
    assert load_config("multilingual_distilled:smoke", changes).teacher.min_steps == 12
    assert load_config("multilingual_distilled:smoke").teacher.min_steps == 0
