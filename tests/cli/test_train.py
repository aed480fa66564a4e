"""The command `train` as a user meets it."""

import csv
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from qpr_jax import Retriever
from qpr_jax.data.pairs import COLUMNS
from qpr_jax.index.run import run_encoder
from tests.xla import QUICK_XLA


def test_labels_and_the_run_to_start_from_are_settings(qpr, monkeypatch):
    given = []
    train = "qpr_jax.training.main.train_encoder"
    monkeypatch.setattr(train, lambda config, *rest: given.append(config) or {})
    status, _, stderr = qpr("train", "r", "p.tsv", "--from", "runs/old", "--labels", "v.csv")
    assert status == 0, stderr
    assert given[0].encoder.pretrained == "runs/old"
    assert (given[0].data.labels, given[0].data.path) == ("v.csv", "p.tsv")


def test_a_training_that_gains_nothing_keeps_the_encoder_that_it_started_from(qpr, tmp_path):
    qpr("sample", "--out", "sample")
    harm = ["optimizer.learning_rate=9", "max_steps=4", "early_stopping.every_steps=2"]
    harm += ["batch_size=64", "rerank.candidates=0"]
    arguments = [part for one in harm for part in ("--set", one)]
    status, _, stderr = qpr(
        "train", "run", "sample/pairs.csv", "--from", "open_student", *arguments
    )
    assert status == 0, stderr
    assert "no step had a better roc_auc than open_student, which the run keeps" in stderr
    questions = ["how do i reset my password", "Reset my password"]
    kept, start = (run_encoder(name).encode(questions) for name in ("run", "open_student"))
    np.testing.assert_array_equal(kept, start)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    settings = report["settings"]
    assert (settings["loss.scale"], settings["encoder.output_dim"]) == (3.0, start.shape[1])
    test = report["test"]
    assert test["start"] == test["exact"] != test["bm25"]
    assert test["bm25"]["per_query"]["mrr@20"] > 0.1
    text = (tmp_path / "run" / "report.md").read_text()
    for expected in ("| test | start | pairs |", "| test | bm25 | pairs |", "labeled duplicates"):
        assert expected in text


SMALL = """
batch_size = 32
max_steps = 3
[encoder]
filters = 8
embedding_dim = 8
output_dim = 8
kernel_sizes = [1, 3]
[optimizer]
learning_rate = 1
[rerank]
candidates = 0
"""


@pytest.mark.slow
def test_trained_from_a_table_of_pairs(generated_data, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL)
    with (generated_data / "quora" / "quora_duplicate_questions.tsv").open(newline="") as file:
        rows = [[row[name] for name in COLUMNS] for row in csv.DictReader(file, delimiter="\t")]
    with (tmp_path / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    command = [sys.executable, "-m", "qpr_jax.cli.main"]
    done = subprocess.run(
        [*command, "train", "run", "pairs.csv", "--config", "mine.toml"],
        env=os.environ | {"PYTHONPATH": os.getcwd(), "XLA_FLAGS": QUICK_XLA},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.md").exists()
    assert Retriever.load(tmp_path / "run").search(["how do i"], 3)[0]


def test_without_pairs_a_preset_reads_its_own_data(qpr, finished, tmp_path):
    """The run of `experiments.main` has the same settings, so there is nothing left to do."""
    workdir, report = finished
    shutil.copytree(workdir, tmp_path / "run")
    arguments = ("train", "run", "--config", "synthetic_sdml:smoke")
    before = (tmp_path / "run" / "report.json").stat().st_mtime_ns
    status, stdout, stderr = qpr(*arguments, "--json")
    assert status == 0, stderr
    assert "run is finished; see run/report.md" in stderr
    assert (tmp_path / "run" / "report.json").stat().st_mtime_ns == before
    assert json.loads(stdout) == {"run": "run", "report": report}
    status, _, stderr = qpr(*arguments, "--set", "seed=1")
    assert status == 1
    assert "replace it with `--overwrite`" in stderr
