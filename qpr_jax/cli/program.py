"""What all programs share: how they log, show progress, end, and get their memory."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from qpr_jax.errors import told

T = TypeVar("T")
log = logging.getLogger("qpr_jax")

INTERVAL = 10.0  # seconds between lines of progress where there is no terminal


def show_progress() -> None:
    """Show what the project logs on standard error, without the details of what it uses."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def told_in_one_line(program: Callable[[], int]) -> int:
    """Call `program`, with one line instead of a traceback for what the user can put right."""
    show_progress()
    try:
        return program()
    except (Exception, KeyboardInterrupt) as error:
        line_and_status = told(error)
        if line_and_status is None:
            raise
        log.debug("traceback:", exc_info=True)
        print(line_and_status[0], file=sys.stderr)
        return line_and_status[1]


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
