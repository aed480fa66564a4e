"""Progress on standard error: a bar of rich on a terminal, a log line every 30 s elsewhere."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
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
        with _log_lines(label, total, start) as show:
            yield show


@contextlib.contextmanager
def _log_lines(label: str, total: int, start: int) -> Iterator[Show]:
    """Yield a function of `bar`; a thread logs what it was told last, if anything, at intervals."""
    began, ended, latest = time.monotonic(), threading.Event(), [(start, "")]

    def log_line() -> None:
        (done, text), seconds = latest[0], time.monotonic() - began
        parts = [label, text, duration(seconds)]
        if done > start:
            rate = (done - start) / seconds
            amount = f"{done:,} of {total:,}" if total else f"{done:,}"
            parts = [f"{label} {amount}", text, f"{rounded(rate)} a second"]
            if total:
                parts.append(f"{duration(max(0, total - done) / rate)} left")
        log.info("%s", ", ".join(filter(None, parts)))

    def run() -> None:
        while not ended.wait(LINE_INTERVAL):
            log_line()

    def show(done: int, text: str) -> None:
        latest[0] = done, text

    threading.Thread(target=run, name="progress", daemon=True).start()
    try:
        yield show
    finally:
        ended.set()


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
