"""The command `qpr`: train, encode, index, search and keep an index up to date.

Exit codes: 0 success; 2 a wrong command, option or value of one, which the command line alone
shows; 1 another error that the user can fix (one line describes it), or a closed output pipe; 128
plus the number of a signal that ended the program.
"""

import signal
import sys


def main() -> int:
    """Run the program and return the exit status."""
    try:  # imported late, since Ctrl-C may come before they are there
        from qpr_jax.cli import commands, program

        program.unblock_interrupts()
        status = program.run_program(commands.run)
    except KeyboardInterrupt:
        print("stopped: nothing was changed", file=sys.stderr)
        status = 128 + signal.SIGINT
    if status == 128 + signal.SIGINT:
        # Python, where it ran source when the signal came, would end by the signal in spite of the
        # status; to run source again makes it forget that.
        exec("")
    return status


if __name__ == "__main__":
    sys.exit(main())
