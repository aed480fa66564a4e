"""The command `presets`."""

import json
import re
import tomllib

import pytest

from qpr_jax.training.config import declarations, load_config
from qpr_jax.training.presets import FACTS


def test_presets_lists_what_each_trains_its_scores_and_its_time(qpr):
    status, stdout, _ = qpr("presets")
    assert status == 0
    assert re.search(r"(?m)^quora_sdml +H@1 0\.762  MRR 0\.822 +10 min$", stdout)
    assert max(map(len, stdout.splitlines())) <= 100
    rows = [json.loads(line) for line in qpr("presets", "--json")[1].splitlines()]
    assert [row["name"] for row in rows] == [*FACTS]
    assert rows[1]["mrr"] == 0.822
    status, stdout, _ = qpr("presets", "quora_best", "distill")
    assert "# quora_best " in stdout
    assert "batch_size = 1024" in stdout
    assert '"quora_best"' in qpr("presets", "quora_best", "--json")[1]
    status, _, stderr = qpr("presets", "best")
    assert status == 2
    assert "'best' is not one of" in stderr


@pytest.mark.parametrize("name", ["quora_best", "quora_minilm_triplet"])
def test_the_toml_of_a_preset_is_its_config(qpr, tmp_path, name):
    few, every = qpr("presets", name)[1], qpr("presets", name, "--all")[1]
    whole = re.sub(r"(?m)^# (?=[a-z_.]+ = )", "", every)  # comments become settings
    for text in (few, every, whole):
        (tmp_path / "mine.toml").write_text(text)
        assert load_config(str(tmp_path / "mine.toml")) == load_config(name)
    names = [
        f"{key}.{last}" if isinstance(value, dict) else key
        for key, value in tomllib.loads(whole).items()
        for last in (value if isinstance(value, dict) else [""])
    ]
    assert names == [*declarations()]
