"""Without a terminal everything is plain lines."""

import os
import subprocess
import sys

import pytest

from qpr_jax.cli.commands import qpr as program


@pytest.mark.parametrize("name", ["", *program.commands])
def test_help_is_plain_lines(qpr, monkeypatch, name):
    """At the width that is given, 80 by default, without control characters."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    status, stdout, stderr = qpr(*filter(None, [name]), "--help")
    assert (status, stderr) == (0, "")
    assert all(character.isprintable() or character == "\n" for character in stdout)
    assert max(map(len, stdout.splitlines())) <= 100


def test_a_command_prints_no_control_characters(tmp_path, run):
    (tmp_path / "q.txt").write_text("how to cook rice\nhow do i learn python\n")
    command = [sys.executable, "-m", "qpr_jax.cli.main", "index", "mine", "q.txt"]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(
        [*command, "--run", str(run)],
        env=os.environ | {"PYTHONPATH": root, "FORCE_COLOR": "1", "TERM": "xterm"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert all(character.isprintable() or character == "\n" for character in done.stderr)
