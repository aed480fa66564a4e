"""The commands `presets` and `settings`."""

import json
import re
import tomllib

import pytest

from qpr_jax.training.config import TrainConfig, declarations, flatten
from qpr_jax.training.describe import CHOICES
from qpr_jax.training.losses_config import loss_names
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.overrides import load_config
from qpr_jax.training.presets import PRESETS, preset_scores
from qpr_jax.training.sources import SOURCES


def test_presets_lists_what_each_trains_its_scores_and_its_time(qpr):
    assert {*preset_scores()} == {*PRESETS}
    status, stdout, _ = qpr("presets")
    assert status == 0
    assert re.search(r"(?m)^quora_sdml +H@1 0\.762  MRR 0\.822 +10 min$", stdout)
    assert max(map(len, stdout.splitlines())) <= 100
    rows = [json.loads(line) for line in qpr("presets", "--json")[1].splitlines()]
    assert [row["name"] for row in rows] == [*preset_scores()]
    assert rows[1]["mrr"] == 0.822
    status, stdout, _ = qpr("presets", "quora_best", "distill")
    assert "quora_best " in stdout
    assert "batch_size=1024" in stdout
    assert '"quora_best"' in qpr("presets", "quora_best", "--json")[1]
    status, _, stderr = qpr("presets", "best")
    assert status == 1
    assert stderr.startswith("error: `names`: expected a preset, got 'best'; ")


def test_choices_are_those_of_the_registries():
    assert {
        "data.source": tuple(SOURCES),
        "encoder.kind": tuple(MODEL_FAMILIES),
        "loss.names": loss_names(),
    } == CHOICES


def test_settings_in_words_and_in_json(qpr):
    status, stdout, _ = qpr("settings")
    assert status == 0
    assert [*re.findall(r"(?m)^([a-z_.]+) = ", stdout)] == [*declarations()]
    rows = [json.loads(line) for line in qpr("settings", "--json")[1].splitlines()]
    assert {row["name"]: row["default"] for row in rows} == json.loads(
        json.dumps(flatten(TrainConfig()))
    )
    _, stdout, _ = qpr("settings", "batch_size", "loss", "--config", "quora_best")
    assert "batch_size = 1024  (default: 512)\n    pairs of a batch" in stdout
    assert "loss.symmetric = true  (default: false)" in stdout
    assert "encoder." not in stdout
    status, _, stderr = qpr("settings", "batch_sise")
    assert (status, stderr) == (
        1,
        "error: there is no setting `batch_sise`; did you mean `batch_size`?\n",
    )


@pytest.mark.parametrize("name", [None, "quora_best", "quora_minilm_triplet"])
def test_a_toml_to_start_from_is_the_config(qpr, tmp_path, name):
    _, stdout, _ = qpr("settings", "--toml", *(("--config", name) if name else ()))
    (tmp_path / "mine.toml").write_text(stdout)
    expected = load_config(name) if name else TrainConfig()
    assert load_config(str(tmp_path / "mine.toml")) == expected
    # Without the signs of comments it has every setting.
    whole = re.sub(r"(?m)^# (?=[a-z_]+ = )", "", stdout)
    (tmp_path / "mine.toml").write_text(whole)
    assert load_config(str(tmp_path / "mine.toml")) == expected
    tables = tomllib.loads(whole)
    names = [
        f"{key}.{last}" if isinstance(value, dict) else key
        for key, value in tables.items()
        for last in (value if isinstance(value, dict) else [""])
    ]
    assert names == [*declarations()]
