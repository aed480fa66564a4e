"""Progress on standard error: a bar on a terminal, a log line every 30 s elsewhere.

Both show the time left, lines the rate, too. A thread draws them, so they move during long calls.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

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
def bar(
    label: str,
    total: int = 0,
    *,
    start: int = 0,
    shown: bool = True,
    interval: float = LINE_INTERVAL,
) -> Iterator[Show]:
    """Yield a function (done, text) that shows how much is done, and the time left.

    Args:
      label: the unit, such as `step`, or the name of a phase that cannot be counted.
      total: maximum number; 0 if unknown.
      start: number done before, which does not count for the rate.
      shown: False shows nothing.
      interval: seconds between log lines where there is no terminal.
    """
    if not shown:
        yield lambda done, text: None
    elif _on_terminal():
        with _rich(label, total) as progress:
            task = progress.add_task("", total=total or None, completed=start)
            yield lambda done, text: progress.update(task, completed=done, description=text)
    else:
        state = [start, ""]

        def show(done: int, text: str) -> None:
            state[:] = done, text

        with _lines(label, total, start, state, interval):
            yield show


@contextlib.contextmanager
def _lines(label: str, total: int, start: int, state: list[Any], interval: float) -> Iterator[None]:
    began, ended = time.monotonic(), threading.Event()

    def log_lines() -> None:
        while not ended.wait(interval):
            seconds, (done, text) = time.monotonic() - began, state
            log.info("%s", _line(label, total, done, done - start, seconds, text))

    thread = threading.Thread(target=log_lines, daemon=True, name="qpr_jax progress")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _line(label: str, total: int, done: int, new: int, seconds: float, text: str) -> str:
    """Such as `step 20 of 100, loss 1.2, 90 a second, 4 s left`."""
    if not new:
        return f"{label}: {duration(seconds)} so far"
    amount = f"{done:,} of {total:,}" if total else f"{done:,}"
    parts = [f"{label} {amount}", *filter(None, [text]), f"{rounded(new / seconds)} a second"]
    if total:
        parts.append(f"{duration(seconds / new * max(0, total - done))} left")
    return ", ".join(parts)


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


def _on_terminal() -> bool:
    """Whether a bar can be drawn; rich itself leaves out colors if NO_COLOR is set."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _rich(label: str, total: int) -> Any:
    """Return a bar of rich, which is imported only if it is shown."""
    from rich import progress as rich
    from rich.console import Console

    columns: list[rich.ProgressColumn] = [rich.TextColumn(label), rich.BarColumn()]
    columns += [rich.MofNCompleteColumn(), rich.TimeElapsedColumn()]
    if total:
        columns.append(rich.TimeRemainingColumn())
    columns.append(rich.TextColumn("{task.description}"))
    return rich.Progress(*columns, console=Console(stderr=True), transient=not total)
