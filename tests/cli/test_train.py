"""The command `train` as a user meets it."""

import json
import re
import shutil
import tomllib

import numpy as np
import pytest

from qpr_jax import Retriever, read_encoder
from qpr_jax.training.config import declarations, load_config
from qpr_jax.training.presets import FACTS


def train_further(done, *changes):
    """What a training of the packaged encoder on the sample says."""
    done("sample", "--out", "sample")
    arguments = [f"--set={one}" for one in ("batch_size=64", "rerank.candidates=0", *changes)]
    return done("train", "run", "sample/pairs.csv", "--encoder", "open_student", *arguments)[1]


def test_a_training_that_gains_nothing_keeps_the_encoder_that_it_started_from(done, tmp_path):
    harm = ("optimizer.learning_rate=9", "max_steps=4", "early_stopping.every_steps=2")
    stderr = train_further(done, *harm)
    assert "no step had a better mrr than open_student, which the run keeps" in stderr
    assert "bm25s" not in stderr
    questions = ["how do i reset my password", "Reset my password"]
    kept, start = (read_encoder(name).encode(questions) for name in ("run", "open_student"))
    np.testing.assert_array_equal(kept, start)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    settings = report["settings"]
    assert (settings["loss.scale"], settings["encoder.output_dim"]) == (3.0, start.shape[1])
    test = report["test"]
    assert test["start"] == test["exact"] != test["bm25"]
    assert test["bm25"]["per_query"]["mrr@20"] > 0.1
    text = (tmp_path / "run" / "report.md").read_text()
    # The index finds what an exact search finds, and the run is its start.
    for name in ("| test | start |", "| test | exact |", "| seed |", "loss.distance"):
        assert name not in text
    for expected in ("| test | bm25 | pairs |", "labeled duplicates", "| loss.scale | 3.0 |"):
        assert expected in text
    first = text.splitlines()[2]
    assert first.startswith("The first hit is right for ")
    assert ": +0.0 points (+0.0 to +0.0) against the encoder that the training began with" in first
    assert "It is not surely better than that encoder" in first


def test_a_training_keeps_its_gain(done):
    stderr = train_further(done, "max_steps=6", "optimizer.learning_rate=4e-3", "seed=1")
    assert "best mrr at step 6" in stderr
    assert "scores are fitted to " in stderr
    retriever = Retriever.load("run")
    assert retriever.pair_model.settings["labels"]["labels"] >= 20
    ((hit,),) = retriever.search("how can i change my password", k=1)
    assert 0 < hit.score < 1


def test_without_pairs_a_preset_reads_its_own_data(refused, done, finished, tmp_path):
    """The run of `experiments.main` has the same settings, so there is nothing left to do."""
    workdir, report = finished
    shutil.copytree(workdir, tmp_path / "run")
    arguments = ("train", "run", "--config", "synthetic_sdml:smoke")
    before = (tmp_path / "run" / "report.json").stat().st_mtime_ns
    stdout, stderr = done(*arguments, "--json")
    assert "run is finished; see run/report.md" in stderr
    assert (tmp_path / "run" / "report.json").stat().st_mtime_ns == before
    assert json.loads(stdout) == {"run": "run", "report": report}
    refused("replace it with `--overwrite`", *arguments, "--set", "seed=1")


def test_presets_lists_what_each_trains_its_scores_and_its_time(qpr, refused, done):
    stdout, _ = done("presets")
    assert re.search(r"(?m)^quora_sdml +H@1 0\.762  MRR 0\.822 +10 min$", stdout)
    assert max(map(len, stdout.splitlines())) <= 100
    rows = [json.loads(line) for line in qpr("presets", "--json")[1].splitlines()]
    assert [row["name"] for row in rows] == [*FACTS]
    assert rows[1]["mrr"] == 0.822
    stdout, _ = done("presets", "quora_best", "distill")
    assert "# quora_best " in stdout
    assert "batch_size = 1024" in stdout
    assert '"quora_best"' in qpr("presets", "quora_best", "--json")[1]
    refused("'best' is not one of", "presets", "best", status=2)


@pytest.mark.parametrize("name", ["quora_best", "quora_minilm_triplet"])
def test_the_toml_of_a_preset_is_its_config(qpr, tmp_path, name):
    few, every = qpr("presets", name)[1], qpr("presets", name, "--all")[1]
    whole = re.sub(r"(?m)^# (?=[a-z0-9_.]+ = )", "", every)  # comments become settings
    for text in (few, every, whole):
        (tmp_path / "mine.toml").write_text(text)
        assert load_config(str(tmp_path / "mine.toml")) == load_config(name)
    names = [
        f"{key}.{last}" if isinstance(value, dict) else key
        for key, value in tomllib.loads(whole).items()
        for last in (value if isinstance(value, dict) else [""])
    ]
    assert names == [*declarations()]
