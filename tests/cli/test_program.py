"""What programs print and how they end."""

import errno
import signal
import time

import pytest

from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError


def failing(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("expected 1, got 2"), 1, "error: expected 1, got 2"),
        (KeyboardInterrupt(), 128 + signal.SIGINT, "stopped"),
        (
            OSError(errno.ENOSPC, "No space left on device", "a.npy"),
            1,
            "error: [Errno 28]",
        ),
    ],
)
def test_an_error_is_one_line_and_a_status(capsys, error, status, line):
    assert run_program(failing(error)) == status
    err = capsys.readouterr().err
    assert err.startswith(line)
    assert err.count("\n") == 1


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


def test_the_status_of_a_program_that_ends_well_is_its_own():
    assert run_program(lambda: 3) == 3


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_program(failing(ZeroDivisionError()))
