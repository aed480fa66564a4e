"""The pages of measurements are those that the saved tables give."""

import importlib.util
import os
import subprocess
import sys

import pytest

from benchmarks import report
from benchmarks.estimate import CLOCK, read_program

PROGRAM = """
%cond (p: (s32[])) -> pred[] {
  %limit = s32[] constant(3)
}
%body (p: (s32[])) -> (s32[]) {
  %a = f32[4]{0} fusion(%x), metadata={op_name="jit(f)/exp.2"}, {"estimated_cycles":"50"}
  %c = f32[4]{0} fusion(%x), kind=kCustom, calls=%scattered
}
%inner (p: f32[4]) -> f32[4] {
  %g = f32[4]{0} all-gather(%p)
  ROOT %s = f32[4]{0} scatter(%p, %i, %u), to_apply=%add
}
%scattered (p: f32[4]) -> f32[4] {
  ROOT %f = f32[4]{0} fusion(%p), kind=kLoop, calls=%inner
}
ENTRY %main (p: f32[4]) -> f32[4] {
  %loop = (s32[]) while(%t), condition=%cond, body=%body
  %sum = (f32[4,8]{1,0}, bf16[2]{0}) all-reduce-start(%a), channel_id=1
  %b = f32[4]{0} fusion(%x), metadata={op_name="jit(f)/mul"}, {"estimated_cycles":"7"}
}
"""


@pytest.mark.parametrize("name", ["results/benchmarks/README.md", "README.md"])
def test_a_page_has_the_saved_tables(name):
    """If this fails, run `python -m benchmarks --render`."""
    path = report.ROOT / name
    text = path.read_text(encoding="utf-8")
    assert text == report.rendered()[path]
    assert "-dirty" not in text  # of a commit


def test_every_program_has_saved_tables():
    saved = {path.stem for path in report.RESULTS.glob("*.json")}
    assert saved == {*report.NAMES, *report.NAMES_GPU, *report.ESTIMATES}


def test_an_estimate_adds_up_a_program():
    """A loop counts as often as it repeats, a collective with its bytes, a scatter apart.

    A fusion may hold a part of a collective that is counted outside of it.
    """
    found = read_program(PROGRAM)
    assert found.seconds == {"exp": 150 / CLOCK, "mul": 7 / CLOCK}
    assert found.moved == [4 * 8 * 4 + 2 * 2]
    assert found.untimed == {"scatter": 3}


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_the_step_is_compiled_for_a_tpu():
    command = [sys.executable, "-m", "benchmarks.estimate", "--quick", "--devices", "8", "--sizes"]
    done = subprocess.run(command, cwd=report.ROOT, capture_output=True, text=True, check=True)
    assert "step of `synthetic_sdml:smoke`, 32 pairs | 8 | " in done.stdout
    assert "nothing ran on a TPU" in done.stdout


def measure_device(folder, **environment):
    command = ["benchmarks/device.sh", "--quick", str(folder)]
    variables = {**os.environ, **environment}
    done = subprocess.run(
        command, cwd=report.ROOT, env=variables, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


def test_a_device_is_measured_in_parts_and_resumed(tmp_path):
    """A part that has a result is not measured again, one that failed is."""
    program, folder = tmp_path / "python", tmp_path / "out"
    program.write_text(
        f'#!/bin/sh\necho "$@"\ncase "$*" in *--both*) test -e {folder}/good;; esac\n'
    )
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    status, lines = measure_device(folder, **path)
    assert status == 1
    failed = "== loss-64-highest--both: not finished; see "
    assert [line.startswith(failed) for line in lines] == [False, True, *[False] * (len(lines) - 2)]
    assert lines[-1] == "== profile: done"
    assert "-m experiments.main" in (folder / "synthetic_sdml:smoke-highest-0.txt").read_text()
    (folder / "good").touch()
    assert measure_device(folder, **path) == (0, ["== loss-64-highest--both: done"])


@pytest.mark.slow
def test_a_device_is_measured(tmp_path):
    status, lines = measure_device(tmp_path)
    assert status == 0, lines
    assert [*(tmp_path / "profile").rglob("*.xplane.pb")]
