"""What programs print, how they end, and the help of every command."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from qpr_jax.cli.commands import qpr as program
from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError


def failing(error):
    def main():
        raise error

    return main


def test_an_error_is_one_line_and_a_status_and_a_bug_keeps_its_traceback(capsys):
    full = OSError(errno.ENOSPC, "No space left on device", "a.npy")
    for error, status, line in (
        (UserError("expected 1, got 2"), 1, "error: expected 1, got 2"),
        (KeyboardInterrupt(), 128 + signal.SIGINT, "stopped"),
        (full, 1, "error: [Errno 28]"),
    ):
        assert run_program(failing(error)) == status
        err = capsys.readouterr().err
        assert err.startswith(line)
        assert err.count("\n") == 1
    with pytest.raises(ZeroDivisionError):
        run_program(failing(ZeroDivisionError()))


def test_ctrl_c_where_python_ignores_errors_is_raised_again(capsys):
    class Interrupted:
        def __del__(self):
            raise KeyboardInterrupt

    def main():
        Interrupted()
        time.sleep(30)
        return 0

    # A program that a shell starts in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run_program(main) == 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "stopped\n"


def test_help_is_plain_lines_with_an_example(qpr, monkeypatch):
    """At the width that is given, 80 by default, without control characters."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    for name in ("", *program.commands):
        status, stdout, stderr = qpr(*filter(None, [name]), "--help")
        assert (status, stderr) == (0, "")
        assert f"Example: qpr {name} " in stdout or not name
        assert all(character.isprintable() or character == "\n" for character in stdout)
        assert max(map(len, stdout.splitlines())) <= 100


def test_without_a_terminal_a_command_prints_plain_lines(tmp_path, run):
    (tmp_path / "q.txt").write_text("how to cook rice\nhow do i learn python\n")
    command = [sys.executable, "-m", "qpr_jax.cli.main", "index", "mine", "q.txt"]
    done = subprocess.run(
        [*command, "--run", str(run)],
        env=os.environ | {"PYTHONPATH": os.getcwd(), "FORCE_COLOR": "1", "TERM": "xterm"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert all(character.isprintable() or character == "\n" for character in done.stderr)
