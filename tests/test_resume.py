"""A run that is killed or stopped ends like one that is not, bit for bit.

`QPR_KILLS` sets how many times it is killed (default 1, and 30 in the slow test).
"""

import json
import os
import random
import signal
import time

import pytest

from qpr_jax.files import sha256_of
from qpr_jax.training.config import load_config, override
from qpr_jax.training.metrics import read_json_lines
from qpr_jax.training.run import train_and_evaluate
from tests.kills import killed_at
from tests.languages import DIMENSION, LANGUAGE, translated_config
from tests.runs import start_training

SETTINGS = {
    "devices": 1,
    "batch_size": 64,
    "max_steps": 17,  # of pairs, after those of distillation
    "checkpoint_every": 3,
    "early_stopping.every_steps": 8,
    "early_stopping.patience": 99,
    # All that a step draws or remembers besides.
    "batch.sampling": "clusters",
    "batch.token_dropout": 0.1,
    "loss.names": "sdml,online_contrastive",
    # And of translations and a teacher, the first steps alone, the others beside the pairs.
    "batch.subword_dropout": 0.3,
    "text.subwords": True,
    "teacher.epochs": 1,
    "teacher.weight": 0.5,
    "optimizer.learning_rate_decay": "linear",
    "encoder.normalize": True,
    "encoder.output_dim": DIMENSION,
    "rerank.candidates": 0,  # tests/training/test_pair_model_job.py kills that
}
STEPS = 44


def settings(given, **changes):
    """The settings of a run, whose teacher and translations are in the folder `given`."""
    files = {"teacher.model": str(given / "teacher")}
    files["data.parallel"] = f"en-{LANGUAGE}:{given / 'sentences.tsv'}"
    return SETTINGS | files | changes


def train(workdir, given):
    """Train in this process."""
    config = override(load_config("synthetic_sdml:smoke"), settings(given))
    return train_and_evaluate(config, workdir)


def start(workdir, given, **changes):
    """Start the training in a process of its own."""
    return start_training(workdir, settings(given, **changes))


def lines(workdir):
    path = workdir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def result(workdir):
    rows = read_json_lines(workdir / "metrics.jsonl")
    report = json.loads((workdir / "report.json").read_text())
    return {
        "steps": [row["step"] for row in rows],
        "losses": [(row["loss"], row["grad_norm"]) for row in rows],
        "evaluations": read_json_lines(workdir / "evaluations.jsonl"),
        "encoder": sha256_of(workdir / "export" / "model.safetensors"),
        "test": report["test"],
        "translations": report.get("translations"),
    }


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Where the teacher's vectors are cached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def unbroken(build_once):
    """The folder of a whole run, of its teacher and its translations."""

    def build(folder):
        translated_config(folder)
        train(folder / "run", folder)

    return build_once("unbroken", build)


@pytest.mark.parametrize(
    "kills",
    [
        int(os.environ.get("QPR_KILLS", "1")),
        pytest.param(int(os.environ.get("QPR_KILLS", "30")), marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_moments_it_ends_with_the_same_bits(unbroken, tmp_path, kills):
    workdir = tmp_path / "run"
    rng = random.Random(0)
    for kill in range(kills):
        process = start(workdir, unbroken)
        # Every other kill falls into the writing of a checkpoint, the others anywhere.
        target = lines(workdir) + rng.randrange(1, 13)
        while process.poll() is None:
            writing = list((workdir / "checkpoints").glob("*tmp*"))
            if writing if kill % 2 == 0 else lines(workdir) >= target:
                break
            time.sleep(0.001)
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.communicate()
    train(workdir, unbroken)
    expected = result(unbroken / "run")
    assert expected["steps"] == list(range(1, STEPS + 1))
    assert result(workdir) == expected


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_saves_the_last_step(unbroken, tmp_path, number):
    """tests/training/test_cross_encoder.py resumes after one, in the same loop."""
    workdir = tmp_path / "run"
    process = start(workdir, unbroken, checkpoint_every=1000)
    while lines(workdir) < 2 and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    assert f"{number.name}: saving, then stopping" in errors
    assert 2 <= lines(workdir) < STEPS
    assert (workdir / "checkpoints" / str(lines(workdir))).is_dir()


@pytest.mark.parametrize("rename", [9, pytest.param(3, marks=pytest.mark.slow)])
def test_after_a_crash_at_any_rename_the_same_run_ends_the_same(tmp_path, rename):
    """Files and folders are renamed into place; a run may end before any of the renames."""
    config = override(load_config("synthetic_sdml:smoke"), {"devices": 1})
    with killed_at(rename):
        train_and_evaluate(config, tmp_path / "run")
    assert not (tmp_path / "run" / "report.json").exists()
    report = train_and_evaluate(config, tmp_path / "run")
    assert len(result(tmp_path / "run")["steps"]) == 12
    assert set(report) >= {"validation", "test", "index", "timing"}
