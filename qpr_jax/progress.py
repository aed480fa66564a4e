"""Progress on standard error: a bar on a terminal, elsewhere a log line now and then."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
log = logging.getLogger("qpr_jax")

COUNT_INTERVAL = 10.0  # seconds between log lines
BAR_INTERVAL = 15.0


def count(items: Iterable[T], label: str) -> Iterator[T]:
    """Yield the items and show how many have passed."""
    if _on_terminal():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn(label), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
            yield from shown.track(items, total=None)
        return
    last = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        if (now := time.monotonic()) - last >= COUNT_INTERVAL:
            last = now
            log.info("%s: %s", label, f"{number:,}")


@contextlib.contextmanager
def bar(
    label: str, total: int, *, start: int = 0, shown: bool = True, interval: float = BAR_INTERVAL
) -> Iterator[Callable[[int, str], None]]:
    """Yield a function (done, text) that shows `done` of at most `total` and the time left.

    Args:
      label: the unit, as `step`.
      start: what was done before.
      shown: False shows nothing.
      interval: seconds between log lines.
    """
    if not shown:
        yield lambda done, text: None
        return
    if _on_terminal():
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        text_column = TextColumn("{task.description}")
        with Progress(*columns, text_column, console=Console(stderr=True)) as progress:
            task = progress.add_task("", total=total, completed=start)
            yield lambda done, text: progress.update(task, completed=done, description=text)
        return
    began = last = time.monotonic()

    def show(done: int, text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= interval and done > start:
            last = now
            minutes = (now - began) / (done - start) * (total - done) / 60
            log.info(
                "%s %d of at most %d, %sat most %.0f min left",
                *(label, done, total, text and f"{text}, ", minutes),
            )

    yield show


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
