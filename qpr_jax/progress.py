"""Progress on standard error: a bar on a terminal, elsewhere a log line now and then."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
log = logging.getLogger("qpr_jax")

COUNT_INTERVAL = 10.0  # seconds between log lines
BAR_INTERVAL = 15.0


def count(items: Iterable[T], label: str) -> Iterator[T]:
    """Yield the items and show how many have passed."""
    if _on_terminal():
        with _rich(label, transient=True) as shown:
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
    began = last = time.monotonic()

    def show_line(done: int, text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= interval and done > start:
            last = now
            minutes = (now - began) / (done - start) * (total - done) / 60
            log.info(
                "%s %d of at most %d, %sat most %.0f min left",
                *(label, done, total, text and f"{text}, ", minutes),
            )

    if not shown:
        yield lambda done, text: None
    elif _on_terminal():
        with _rich(label, time_left=True) as progress:
            task = progress.add_task("", total=total, completed=start)
            yield lambda done, text: progress.update(task, completed=done, description=text)
    else:
        yield show_line


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _rich(label: str, *, transient: bool = False, time_left: bool = False) -> Progress:
    """A bar of rich, which is imported only where it is shown."""
    from rich import progress as rich
    from rich.console import Console

    columns = [rich.TextColumn(label), rich.BarColumn(), rich.MofNCompleteColumn()]
    if time_left:
        columns += [rich.TimeRemainingColumn(), rich.TextColumn("{task.description}")]
    return rich.Progress(*columns, console=Console(stderr=True), transient=transient)
