"""What all programs share: how they log, show progress, end, and get their memory."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from qpr_jax.errors import UserError, format_error

T = TypeVar("T")
log = logging.getLogger("qpr_jax")

INTERVAL = 10.0  # seconds between lines of progress where there is no terminal


def show_progress() -> None:
    """Show what the project logs on standard error, without the details of what it uses."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def run_program(main: Callable[[], int]) -> int:
    """Run `main`; print a `UserError` as one line and return the exit status."""
    show_progress()
    try:
        return main()
    except (Exception, KeyboardInterrupt) as error:
        line_and_status = format_error(error)
        if line_and_status is None:
            raise
        log.debug("traceback:", exc_info=True)
        print(line_and_status[0], file=sys.stderr)
        return line_and_status[1]


def run_absl(main: Callable[[], int], arguments: list[str], *, hint: str = "--") -> int:
    """Read the absl flags of `arguments` and run `main` like `run_program`.

    hint: what may be missing before an argument that is no flag.
    """
    from absl import app
    from absl import logging as absl_logging

    absl_logging.set_verbosity(absl_logging.WARNING)

    def run(left: list[str]) -> int:
        if len(left) > 1:
            raise UserError(f"expected flags only, got {left[1]!r}; did you mean {hint}{left[1]}?")
        return main()

    return run_program(lambda: app.run(run, argv=arguments, flags_parser=_parse_flags) or 0)


def _parse_flags(arguments: list[str]) -> list[str]:
    """The arguments that are no flags; UserError where a flag is wrong."""
    from absl import flags

    try:
        return flags.FLAGS(arguments)
    except (flags.Error, AttributeError, TypeError, ValueError) as error:
        # ml_collections gives a quoted quotation of several lines.
        reason = re.sub(r"\\n|[\\'\"\s]+", " ", str(error)).strip()
        raise UserError(f"cannot read the flags: {reason}") from error


def counted(items: Iterable[T], label: str) -> Iterator[T]:
    """The items, with a count of those that passed: on a terminal a bar, elsewhere lines."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn(label), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            yield from bar.track(items, total=None)
        return
    last = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        if (now := time.monotonic()) - last >= INTERVAL:
            last = now
            log.info("%s: %s", label, f"{number:,}")


def use_huge_pages(**variables: str) -> None:
    """Start the program anew with huge pages for large arrays, where glibc can give them.

    On CPU XLA takes the memory of a step from the system and gives it back after, each time:
    touching it for the first time in pages of 4 KiB costs a quarter of a step
    (`benchmarks/train_step.py` with and without the variable).

    variables: of the environment that are wanted besides. A user's own values stay.
    """
    wanted = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", **variables}
    if sys.platform == "linux" and not os.environ.keys() >= wanted.keys():
        environment = wanted | os.environ
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
