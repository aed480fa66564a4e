"""Completion in shells."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete, FishComplete

from qpr_jax.cli.commands import qpr as program
from qpr_jax.cli.completion import SHELLS, VARIABLE
from qpr_jax.data.tables import FORMATS
from qpr_jax.training.config import declarations
from qpr_jax.training.presets import PRESETS


def completed(line, kind=BashComplete):
    """What the last word of a line may become."""
    words = line.split(" ")
    shell = kind(program, {}, "qpr", VARIABLE)
    found = shell.get_completions(words[1:-1], words[-1])
    return [item.value for item in found if item.type == "plain"]


def test_names_are_completed():
    assert completed("qpr tr") == ["train"]
    assert completed("qpr train r --config quora_b") == ["quora_best"]
    assert {*completed("qpr train r --config ")} == {*PRESETS}
    assert completed("qpr train r --set optimizer.learning_rate") == [
        *("optimizer.learning_rate=", "optimizer.learning_rate_scaling="),
        "optimizer.learning_rate_decay=",
    ]
    assert completed("qpr train r --set loss.names=tr") == ["loss.names=triplet"]
    assert completed("qpr train r --set overwrite=") == ["overwrite=true", "overwrite=false"]
    assert completed("qpr train r --set none=") == []
    assert completed("qpr presets quora_b") == ["quora_best"]
    assert completed("qpr settings los")[0] == "loss"
    assert {*completed("qpr settings ")} > {*declarations()}
    assert (
        completed("qpr index x --run mini") == completed("qpr duplicates --run mini") == ["minilm"]
    )
    assert completed("qpr index x --format ") == [*FORMATS]
    assert completed("qpr completion ") == [*SHELLS]
    assert "--json" in completed("qpr info x --j")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell(qpr, shell):
    status, stdout, stderr = qpr("completion", shell)
    assert (status, stderr) == (0, "")
    assert f"{VARIABLE}={shell}_complete" in stdout
    assert json.loads(qpr("completion", shell, "--json")[1])["script"] == stdout


def test_help_may_have_several_lines_in_fish(monkeypatch, capsys):
    monkeypatch.setenv("COMP_WORDS", "qpr train r --config ")
    monkeypatch.setenv("COMP_CWORD", "")
    assert FishComplete(program, {}, "qpr", VARIABLE).complete().count("\n") == len(PRESETS)


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes(tmp_path):
    (tmp_path / "qpr").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qpr_jax.cli.main "$@"\n')
    (tmp_path / "qpr").chmod(0o755)
    script = """
source <(qpr completion bash)
COMP_WORDS=(qpr train r --config quora_b) COMP_CWORD=4
_qpr_completion qpr 2>/dev/null
echo "${COMPREPLY[@]}"
"""
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=os.environ | {"PATH": path, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("quora_best\n", "")
