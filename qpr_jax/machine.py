"""The memory and the cores of this machine, and loops that numba compiles."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import pickle
import resource
import sys
from collections.abc import Callable
from typing import Any

log = logging.getLogger("qpr_jax")


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
    """Remove files of compiled code that are cut short, as after a power loss.

    Numba stops at them. A file of code that is gone is compiled again.
    """
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
