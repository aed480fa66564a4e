"""Two processes of two devices each train like one process of four, and end when one is lost."""

import signal
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from qpr_jax.training.config import load_config, override
from qpr_jax.training.metrics import read_json_lines
from qpr_jax.training.run import train_and_evaluate
from tests.runs import free_ports, start_training
from tests.xla import QUICK_XLA

SETTINGS = {
    "max_steps": 12,
    "checkpoint_every": 2,
    "early_stopping.patience": 99,
    "batch.sampling": "clusters",
    "loss.mask_own_cluster": True,
    "loss.symmetric": True,
    "batch.token_dropout": 0.1,
    "batch.encode_chunk": 3,
    "rerank.candidates": 0,
}


def start(workdir, devices, changes, **variables):
    xla = f"{QUICK_XLA} --xla_force_host_platform_device_count={devices}"
    return start_training(workdir, SETTINGS | changes, xla, **variables)


def start_two(workdir, second=None, devices=(2, 2), **changes):
    """Two processes of some devices; `second`: settings that only the second gets."""
    address = f"localhost:{free_ports(1)[0]}"
    processes = []
    for number, more in enumerate(({}, second or {})):
        variables = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
        variables["JAX_PROCESS_ID"] = str(number)
        settings = {"distributed": True} | changes | more
        processes.append(start(workdir, devices[number], settings, **variables))
    return processes


def ended(processes):
    """The exit statuses and what was written to standard error, of each process."""
    errors = [process.communicate(timeout=300)[1] for process in processes]
    return [process.returncode for process in processes], errors


def wait_for_step(workdir, step, processes):
    deadline = time.monotonic() + 200
    while not any(row["step"] >= step for row in read_json_lines(workdir / "metrics.jsonl")):
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            for process in processes:
                process.kill()
            pytest.fail(f"step {step} was not reached: {ended(processes)}")
        time.sleep(0.01)


@pytest.fixture(scope="session")
def alone(build_once):
    """A finished run of one process on four devices."""
    config = override(load_config("synthetic_sdml:smoke"), SETTINGS | {"devices": 4})
    return build_once("alone", lambda folder: train_and_evaluate(config, folder / "run")) / "run"


def assert_alike(workdir, other):
    """The same steps, evaluations and parameters, to rounding."""
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        rows, others = (read_json_lines(folder / name) for folder in (workdir, other))
        assert len(rows) == len(others) > 0
        for row, expected in zip(rows, others, strict=True):
            for measured in ("seconds", "pairs_per_second"):
                row.pop(measured, None)
            for key, value in row.items():
                # A score moves by a question or two where two distances all but tie.
                allowed = 1e-4 if name == "metrics.jsonl" else 0.02
                assert value == pytest.approx(expected[key], abs=allowed), (row["step"], key)
    ours, theirs = (load_file(run / "export" / "model.safetensors") for run in (workdir, other))
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-4)


def test_two_processes_train_like_one_with_as_many_devices(alone, tmp_path):
    statuses, errors = ended(start_two(tmp_path / "run"))
    assert statuses == [0, 0], errors
    assert_alike(tmp_path / "run", alone)
    assert (tmp_path / "run" / "report.json").exists()
    assert "pairs per batch 32, cpu devices 4, processes 2" in errors[0]
    assert "pairs:" not in errors[1]


@pytest.mark.slow
def test_a_lost_process_ends_the_other_and_any_number_of_devices_goes_on(alone, tmp_path):
    processes = start_two(tmp_path / "run")
    wait_for_step(tmp_path / "run", 4, processes)
    processes[1].kill()
    statuses, errors = ended(processes)
    assert statuses[1] == -signal.SIGKILL
    assert statuses[0] != 0
    assert "lost another process" in errors[0] or "another task died" in errors[0]
    assert not (tmp_path / "run" / "export").exists()

    statuses, errors = ended([start(tmp_path / "run", 1, {})])
    assert statuses == [0], errors
    assert "resuming from step" in errors[0]
    assert_alike(tmp_path / "run", alone)


def test_processes_of_other_settings_do_not_train_together(tmp_path):
    statuses, errors = ended(start_two(tmp_path, {"loss.smoothing": 0.2}))
    assert 0 not in statuses
    assert "process 1: error: `loss.smoothing`: expected 0.3, as in process 0, got 0.2" in errors[1]
    assert "Traceback" not in errors[1]


def test_processes_of_other_numbers_of_devices_do_not_train_together(tmp_path):
    statuses, errors = ended(start_two(tmp_path, devices=(2, 1)))
    assert 0 not in statuses
    for text in errors:
        assert text.count("error: ") == 1
        assert "`distributed`: expected as many devices in each process, got 2, 1; " in text


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_in_order(tmp_path):
    processes = start_two(tmp_path / "run", max_steps=100_000)
    wait_for_step(tmp_path / "run", 4, processes)
    processes[1].terminate()
    statuses, errors = ended(processes)
    assert statuses == [128 + signal.SIGTERM] * 2, errors
    assert "the same command resumes" in errors[0]
    assert "Traceback" not in errors[0] + errors[1]
