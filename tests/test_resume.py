"""A run that is killed or stopped ends like one that is not, bit for bit.

`QPR_KILLS` sets how many times it is killed (default 1, and 30 in the slow test).
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from qpr_jax.files import sha256_of
from qpr_jax.training.config import load_config
from qpr_jax.training.main import train_and_evaluate
from qpr_jax.training.metrics import read_json_lines
from tests.xla import QUICK_XLA

ROOT = pathlib.Path(__file__).parent.parent
COMMAND = (
    sys.executable,
    "-m",
    "experiments.main",
    "--config=synthetic_sdml_smoke",
    "--config.max_steps=41",  # of pairs, after 19 of imitation
    "--config.checkpoint_every=4",
    "--config.early_stopping.every_steps=15",
    "--config.early_stopping.patience=99",
    # All that a step draws or remembers besides.
    "--config.batch.sampling=clusters",
    "--config.batch.token_dropout=0.1",
    "--config.batch.hard_negatives=8",
    "--config.loss.names=sdml,online_contrastive",
    # And of a teacher, the first steps alone, the others beside the pairs.
    f"--config.teacher.model={ROOT / 'tests' / 'encoders' / 'tiny_bert'}",
    "--config.teacher.epochs=1",
    "--config.teacher.batch_size=32",
    "--config.teacher.weight=0.5",
    "--config.optimizer.learning_rate_decay=linear",
    "--config.encoder.normalize=True",
    "--config.rerank.candidates=0",  # tests/test_second_stage_of_a_run.py kills that
)


STEPS = 60


def start(workdir, *flags, teacher=None, **variables):
    """Start the training; `teacher`: a finished run whose teacher's vectors are read."""
    cache = {"XDG_CACHE_HOME": f"{teacher or workdir}_teacher"}
    return subprocess.Popen(
        [*COMMAND, f"--workdir={workdir}", *flags],
        env=os.environ | {"XLA_FLAGS": QUICK_XLA, "GLIBC_TUNABLES": ""} | cache | variables,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(workdir, *flags, **variables):
    process = start(workdir, *flags, **variables)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return errors


def lines(workdir):
    path = workdir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def result(workdir):
    rows = read_json_lines(workdir / "metrics.jsonl")
    return {
        "steps": [row["step"] for row in rows],
        "losses": [(row["loss"], row["grad_norm"]) for row in rows],
        "evaluations": read_json_lines(workdir / "evaluations.jsonl"),
        "encoder": sha256_of(workdir / "export" / "model.safetensors"),
        "scores": json.loads((workdir / "report.json").read_text())["test"],
    }


@pytest.fixture(scope="session")
def unbroken(build_once):
    return build_once("unbroken", lambda folder: finish(folder / "run")) / "run"


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
        process = start(workdir, teacher=unbroken)
        # Every other kill falls into the writing of a checkpoint, the others anywhere.
        target = lines(workdir) + rng.randrange(1, 26)
        while process.poll() is None:
            writing = list((workdir / "checkpoints").glob("*tmp*"))
            if writing if kill % 2 == 0 else lines(workdir) >= target:
                break
            time.sleep(0.001)
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.communicate()
    finish(workdir, teacher=unbroken)
    expected = result(unbroken)
    assert expected["steps"] == list(range(1, STEPS + 1))
    assert result(workdir) == expected


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_the_same_command_resumes(unbroken, tmp_path, number):
    workdir = tmp_path / "run"
    process = start(workdir, "--config.checkpoint_every=1000", teacher=unbroken)
    while lines(workdir) < 2 and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    assert f"{number.name}: saving, then stopping" in errors
    saved = lines(workdir)
    assert 2 <= saved < STEPS
    if number == signal.SIGTERM:  # whose run resumes like the other's, and like a killed one
        return
    errors = finish(workdir, "--config.checkpoint_every=1000", teacher=unbroken)
    assert f"resuming from step {saved}" in errors
    assert result(workdir) == result(unbroken)


@pytest.mark.slow
def test_it_resumes_with_another_number_of_devices(unbroken, tmp_path):
    workdir = tmp_path / "run"
    process = start(workdir)
    while lines(workdir) < 20 and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.communicate()
    flags = f"{QUICK_XLA} --xla_force_host_platform_device_count=2"
    errors = finish(workdir, XLA_FLAGS=flags)
    assert "on 2 cpu device(s)" in errors
    assert "resuming from step" in errors
    ours, expected = result(workdir), result(unbroken)
    assert ours["steps"] == expected["steps"]
    difference = max(
        abs(a - b)
        for row, other in zip(ours["losses"], expected["losses"], strict=True)
        for a, b in zip(row, other, strict=True)
    )
    assert 0 < difference < 1e-2


class Crash(BaseException):
    """Stands for a kill: nothing but `finally` runs after it."""


@pytest.mark.parametrize("call", [10, pytest.param(4, marks=pytest.mark.slow)])
def test_after_a_crash_at_any_rename_the_same_run_ends_the_same(tmp_path, monkeypatch, call):
    """Files and folders are renamed into place; a run may end before any of the renames."""
    config = load_config("synthetic_sdml:smoke")
    rename, calls = os.replace, []

    def crash(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            raise Crash
        rename(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(Crash):
            train_and_evaluate(config, tmp_path / "run")
    report = train_and_evaluate(config, tmp_path / "run")
    assert len(result(tmp_path / "run")["steps"]) == 12
    assert set(report) >= {"validation", "test", "index", "timing"}
