"""Parts that all programs share: logs, one-line errors, exit codes, options, huge pages."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable

from qpr_jax.errors import format_error, printable

log = logging.getLogger("qpr_jax")


class _LineFormatter(logging.Formatter):
    """Prints each message on one line, without what a terminal would act on."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = printable(record.message)
        return super().formatMessage(record)


def run_program(main: Callable[[], int]) -> int:
    """Run `main`; print a `UserError` as one line and return the exit status.

    Only the log lines of this project are shown, and none of a library.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_LineFormatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    before, sys.unraisablehook = sys.unraisablehook, _keep_interrupt
    try:
        unblock_interrupts()
        return main()
    except (Exception, KeyboardInterrupt) as error:
        line_and_status = format_error(error)
        if line_and_status is None:
            raise
        print(line_and_status[0], file=sys.stderr)
        return line_and_status[1]
    finally:
        sys.unraisablehook = before


def unblock_interrupts() -> None:
    """Let Ctrl-C interrupt this program again after `use_huge_pages` has restarted it."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _keep_interrupt(ignored: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that came where Python ignores errors, as in `__del__`."""
    if ignored.exc_type is KeyboardInterrupt:
        # A moment later, since it would be ignored here too.
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    else:
        sys.__unraisablehook__(ignored)


def use_huge_pages(**variables: str) -> None:
    """Restart this program with environment variables that make glibc use huge pages.

    XLA allocates the memory of every training step on CPU from the system and frees it afterwards.
    The first access to each page of 4 KiB then takes a quarter of the step (measure with
    `benchmarks/train.py`, with and without the variable).

    Args:
      variables: further environment variables. A value that the user has set stays.
    """
    required = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", **variables}
    if sys.platform == "linux" and not os.environ.keys() >= required.keys():
        # Ctrl-C waits for `unblock_interrupts`, since Python, while it starts, prints a traceback.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], required | os.environ)
