"""Progress on standard error: a bar of rich on a terminal, a log line every 30 s elsewhere."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Show = Callable[[int, str], None]
log = logging.getLogger("qpr_jax")

LINE_INTERVAL = 30.0  # seconds between log lines


def count(items: Iterable[T], label: str) -> Iterator[T]:
    """Yield the items and show how many have passed."""
    with bar(label) as show:
        for number, item in enumerate(items, start=1):
            yield item
            show(number, "")


@contextlib.contextmanager
def bar(label: str, total: int = 0, *, start: int = 0, shown: bool = True) -> Iterator[Show]:
    """Yield a function (done, text) that shows how much is done, the rate or the time, and a text.

    Args:
      label: the unit, such as `step`, or the name of a phase that cannot be counted.
      total: maximum number; 0 if unknown.
      start: number done before, which does not count for the rate.
      shown: False shows nothing.
    """
    if not shown:
        yield lambda done, text: None
    elif sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from rich import progress as rich
        from rich.console import Console

        columns: list[rich.ProgressColumn] = [rich.TextColumn(label), rich.BarColumn()]
        columns += [rich.MofNCompleteColumn(), rich.TimeElapsedColumn()]
        columns += [rich.TimeRemainingColumn()] if total else []
        columns.append(rich.TextColumn("{task.description}"))
        with rich.Progress(*columns, console=Console(stderr=True), transient=not total) as progress:
            task = progress.add_task("", total=total or None, completed=start)
            yield lambda done, text: progress.update(task, completed=done, description=text)
    else:
        yield _log_lines(label, total, start)


def _log_lines(label: str, total: int, start: int) -> Show:
    """Return a function that logs, such as `step 20 of 100, loss 1.2, 90 a second, 4 s left`."""
    began = last = time.monotonic()

    def show(done: int, text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < LINE_INTERVAL or done <= start:
            return
        last, seconds = now, now - began
        amount = f"{done:,} of {total:,}" if total else f"{done:,}"
        rate = (done - start) / seconds
        parts = [f"{label} {amount}", *filter(None, [text]), f"{rounded(rate)} a second"]
        if total:
            parts.append(f"{duration(max(0, total - done) / rate)} left")
        log.info("%s", ", ".join(parts))

    return show


def duration(seconds: float) -> str:
    """Return a time as people read it: `0.1 s` (the least), `40 s`, `2 min 51 s`, `3 h 20 min`."""
    whole = round(seconds)
    if seconds < 9.95:
        return f"{max(seconds, 0.1):.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def rounded(rate: float) -> str:
    """Return a rate with two figures, such as `1.5` or `16,000`."""
    if rate < 10:
        return f"{rate:.1f}"
    digits = len(str(int(rate))) - 2
    return f"{round(rate, -digits):,.0f}"
