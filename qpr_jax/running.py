"""How a call runs here: its cores and memory, its loops that numba compiles, and its progress.

Progress is a bar of rich on a terminal; elsewhere a line is logged every 30 s.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pathlib
import pickle
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

log = logging.getLogger("qpr_jax")
T = TypeVar("T")
Show = Callable[[int, str], None]

LINE_INTERVAL = 30.0  # seconds between log lines


def cpu_count() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # macOS has none
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory() -> int:
    """Return the most memory that this process has held so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # elsewhere in KiB


def available_memory() -> int:
    """Return the bytes that processes can still allocate, within the limit of the container."""
    limits = [1 << 62]
    if "MemAvailable" in (machine := _read_numbers("/proc/meminfo")):
        limits.append(1024 * machine["MemAvailable"])
    # A container's limit, less what its processes hold; its cached files can be dropped.
    group = pathlib.Path("/sys/fs/cgroup")
    for limit, held in (("memory.max", "anon"), ("memory/memory.limit_in_bytes", "rss")):
        stat = group / ("memory.stat" if held == "anon" else "memory/memory.stat")
        if found := _read_numbers(group / limit):
            limits.append(max(0, found[""] - _read_numbers(stat).get(held, 0)))
    return min(limits)


def _read_numbers(path: str | pathlib.Path) -> dict[str, int]:
    """Read a file of lines `NAME NUMBER`, or of one number, whose name is then empty."""
    try:
        lines = [line.split() for line in pathlib.Path(path).read_text().splitlines()]
    except OSError:  # not on this system
        return {}
    found = {}
    for words in lines:
        if len(words) == 1 and words[0].isdigit():
            found[""] = int(words[0])
        elif len(words) > 1 and words[1].isdigit():
            found[words[0].rstrip(":")] = int(words[1])
    return found


def compile_loop(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function by numba, and cache the result on disk if a folder for it is writable.

    Numba compiles a cached loop again when its own file changes. So a loop may call only loops of
    its file: changes of another file would not reach it.
    """
    import numba

    _watch_compiling()

    def decorate(loop: Callable[..., Any]) -> Any:
        try:
            cached = numba.njit(cache=True, nogil=True, error_model="numpy", **options)(loop)
            _remove_damaged(cached.stats.cache_path, pathlib.Path(loop.__code__.co_filename).stem)
            return cached
        except (RuntimeError, OSError):  # no folder can be written
            _say_uncached()
            return numba.njit(nogil=True, error_model="numpy", **options)(loop)

    return decorate


@functools.cache
def _remove_damaged(folder: str, module: str) -> None:
    """Remove files of compiled code that are cut short, at which Numba stops."""
    for path in pathlib.Path(folder).glob(f"{module}.*.nb[ic]"):
        try:
            with path.open("rb") as file:
                while file.peek(1):
                    pickle.load(file)
                if not file.tell():
                    raise EOFError
        except FileNotFoundError:  # another process replaces it
            continue
        except Exception:
            log.warning("%s: removed damaged compiled code, which is compiled again", path)
            path.unlink(missing_ok=True)


@functools.cache
def _watch_compiling() -> None:
    """Log the first compilation of a process: it may take half a minute, without another line."""
    from numba.core import event

    class FirstStart(event.Listener):
        said = False

        def on_start(self, event: event.Event) -> None:
            if not self.said:
                log.info("compiling loops, which takes up to half a minute the first time")
            self.said = True

        def on_end(self, event: event.Event) -> None:
            pass

    event.register("numba:compile", FirstStart())


@functools.cache
def _say_uncached() -> None:
    text = "no folder can keep compiled code, so each start compiles again; set NUMBA_CACHE_DIR to "
    log.warning(text + "a folder that can be written")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context in which this thread logs nothing."""
    this = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        return record.thread != this

    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)


def with_progress(items: Iterable[T], label: str) -> Iterator[T]:
    """Yield the items and show how many have passed."""
    with progress(label) as show:
        for number, item in enumerate(items, start=1):
            yield item
            show(number, "")


@contextlib.contextmanager
def progress(label: str, total: int = 0, *, start: int = 0, shown: bool = True) -> Iterator[Show]:
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
        with rich.Progress(*columns, console=Console(stderr=True), transient=not total) as bars:
            task = bars.add_task("", total=total or None, completed=start)
            yield lambda done, text: bars.update(task, completed=done, description=text)
    else:
        with _log_lines(label, total, start) as show:
            yield show


@contextlib.contextmanager
def _log_lines(label: str, total: int, start: int) -> Iterator[Show]:
    """Yield a function of `progress`; a thread logs at intervals what it was told last."""
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


def end_with_parent() -> None:
    """Send SIGTERM to this process when the one that started it is gone, as after a SIGKILL."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
