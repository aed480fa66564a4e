"""Two processes of two devices each train like one process of four, and end when one is lost."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from qpr_jax.training.metric_writer import read_json_lines
from tests.xla import QUICK_XLA

ROOT = pathlib.Path(__file__).parent.parent
COMMAND = (
    sys.executable,
    "-m",
    "experiments.main",
    "--config=synthetic_sdml_smoke",
    "--config.max_steps=40",
    "--config.early_stopping.patience=99",
    "--config.batch.sampling=clusters",
    "--config.loss.mask_own_cluster=True",
    "--config.loss.symmetric=True",
    "--config.batch.token_dropout=0.1",
    "--config.batch.hard_negatives=8",
    "--config.optimizer.ema_steps=20",
    "--config.batch.encode_chunk=3",
)


def start(workdir, devices, *flags):
    flag = f"{QUICK_XLA} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [*COMMAND, f"--workdir={workdir}", *flags],
        env={**os.environ, "XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_two(workdir, *flags, second=()):
    """Two processes of two devices; `second` are flags that only the second gets."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    together = (
        "--config.distributed.enabled=True",
        f"--config.distributed.coordinator=localhost:{port}",
        "--config.distributed.num_processes=2",
        "--config.distributed.heartbeat=5",
    )
    return [
        start(workdir, 2, *together, f"--config.distributed.process_id={i}", *flags, *more)
        for i, more in enumerate(((), second))
    ]


def ended(processes):
    """The exit statuses and what was written to standard error, of each process."""
    told = [process.communicate(timeout=300)[1] for process in processes]
    return [process.returncode for process in processes], told


def wait_for_step(workdir, step, processes):
    deadline = time.monotonic() + 200
    while not any(row["step"] >= step for row in read_json_lines(workdir / "metrics.jsonl")):
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes)
        time.sleep(0.1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("alone") / "run"
    statuses, told = ended([start(workdir, 4)])
    assert statuses == [0], told
    return workdir


def assert_alike(workdir, other):
    """The same steps, evaluations and parameters, to rounding."""
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        rows, others = (read_json_lines(folder / name) for folder in (workdir, other))
        assert len(rows) == len(others) > 0
        for row, expected in zip(rows, others, strict=True):
            row.pop("pairs_per_second", None)
            for key, value in row.items():
                # A score moves by a question or two where two distances all but tie.
                allowed = 1e-4 if name == "metrics.jsonl" else 0.02
                assert value == pytest.approx(expected[key], abs=allowed), (row["step"], key)
    ours, theirs = (load_file(run / "export" / "model.safetensors") for run in (workdir, other))
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-4)


def test_two_processes_train_like_one_with_as_many_devices(alone, tmp_path):
    statuses, told = ended(start_two(tmp_path / "run"))
    assert statuses == [0, 0], told
    assert_alike(tmp_path / "run", alone)
    assert "16 in each of 2 process(es), 8 on each of 4 cpu device(s)" in told[0]
    assert "memory a device, estimated" in told[0]
    assert "batch:" not in told[1]


def test_a_lost_process_ends_the_other_and_any_number_of_devices_goes_on(alone, tmp_path):
    processes = start_two(tmp_path / "run", "--config.distributed.heartbeat=3")
    wait_for_step(tmp_path / "run", 6, processes)
    processes[1].kill()
    statuses, told = ended(processes)
    assert statuses[1] == -signal.SIGKILL
    assert statuses[0] != 0
    assert "lost another process" in told[0] or "another task died" in told[0]
    assert not (tmp_path / "run" / "export").exists()

    statuses, told = ended([start(tmp_path / "run", 1)])
    assert statuses == [0], told
    assert "going on from step" in told[0]
    assert_alike(tmp_path / "run", alone)


def test_a_run_that_is_trained_is_reported_and_one_that_is_finished_is_left_alone(alone):
    report = (alone / "report.json").read_text()
    (alone / "report.json").unlink()
    for words in ("finished; see", "is finished"):
        statuses, told = ended(start_two(alone))
        assert statuses == [0, 0], told
        assert words in told[0]
        assert "step " not in told[0]
    for split in ("validation", "test"):
        ours, theirs = (
            json.loads(text)[split] for text in ((alone / "report.json").read_text(), report)
        )
        assert ours == theirs


def test_processes_of_other_settings_do_not_train_together(tmp_path):
    statuses, told = ended(start_two(tmp_path, second=["--config.loss.smoothing=0.2"]))
    assert 0 not in statuses
    assert "process 1: error: `smoothing`: expected 0.3, as in process 0, got 0.2" in told[1]
    assert "Traceback" not in told[1]


def test_a_signal_to_one_process_stops_all_in_order(tmp_path):
    processes = start_two(tmp_path / "run", "--config.max_steps=100000")
    wait_for_step(tmp_path / "run", 4, processes)
    processes[1].terminate()
    statuses, told = ended(processes)
    assert statuses == [128 + signal.SIGTERM] * 2, told
    assert "the same command goes on" in told[0]
    assert "Traceback" not in told[0] + told[1]


def test_what_the_first_refuses_ends_the_other(tmp_path):
    (tmp_path / "foreign").touch()
    statuses, told = ended(start_two(tmp_path))
    assert 0 not in statuses
    assert "error: " in told[0]
    assert "expected an empty folder or a run, found 'foreign'" in told[0]
