"""Progress on standard error: a bar on a terminal, elsewhere a log line now and then."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from qpr_jax.amounts import duration, rounded

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
log = logging.getLogger("qpr_jax")

COUNT_INTERVAL = 10.0  # seconds between log lines
BAR_INTERVAL = 15.0


def count(items: Iterable[T], label: str, total: int = 0) -> Iterator[T]:
    """Yield the items and show how many have passed, with the rate.

    total: about how many there are, for the time left; 0 where that is unknown.
    """
    if _on_terminal():
        with _rich(label, transient=True, time_left=bool(total)) as shown:
            yield from shown.track(items, total=total or None)
        return
    began = last = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        if (now := time.monotonic()) - last >= COUNT_INTERVAL:
            last = now
            of = f" of about {total:,}" if total else ""
            left = _speed(number, now - began, total - number)
            log.info("%s: %s%s, %s", label, f"{number:,}", of, left)


@contextlib.contextmanager
def bar(
    label: str, total: int, *, start: int = 0, shown: bool = True, interval: float = BAR_INTERVAL
) -> Iterator[Callable[[int, str], None]]:
    """Yield a function (done, text) that shows `done` of at most `total`, rate and time left.

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
            speed = _speed(done - start, now - began, total - done, at_most="at most ")
            log.info(
                "%s %s of at most %s, %s%s",
                *(label, f"{done:,}", f"{total:,}", text and f"{text}, ", speed),
            )

    if not shown:
        yield lambda done, text: None
    elif _on_terminal():
        with _rich(label, time_left=True) as progress:
            task = progress.add_task("", total=total, completed=start)
            yield lambda done, text: progress.update(task, completed=done, description=text)
    else:
        yield show_line


def _speed(done: int, seconds: float, left: int, *, at_most: str = "") -> str:
    """The rate of what was done, and the time left where there is some, as `90 a second, 4 s`."""
    speed = f"{rounded(done / max(seconds, 1e-9))} a second"
    if left < 0:
        return speed
    return f"{speed}, {at_most}{duration(seconds / done * left)} left"


def _on_terminal() -> bool:
    """Whether a bar can be drawn; rich itself leaves out colors where NO_COLOR is set."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _rich(label: str, *, transient: bool = False, time_left: bool = False) -> Progress:
    """A bar of rich, which is imported only where it is shown."""
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class RateColumn(rich.ProgressColumn):
        """How many a second."""

        def render(self, task: rich.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{rounded(speed)} a second" if speed else "")

    columns: list[rich.ProgressColumn] = [rich.TextColumn(label), rich.BarColumn()]
    columns += [rich.MofNCompleteColumn(), RateColumn()]
    if time_left:
        columns += [rich.TimeRemainingColumn(), rich.TextColumn("{task.description}")]
    return rich.Progress(*columns, console=Console(stderr=True), transient=transient)
