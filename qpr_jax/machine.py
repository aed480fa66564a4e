"""The memory and the cores of this machine."""

from __future__ import annotations

import os
import pathlib
import resource
import sys


def cpu_count() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # macOS has none
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory() -> int:
    """The most memory that this process has held so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # elsewhere in KiB


def held_memory() -> int:
    """The memory that this process holds now, in bytes."""
    held = _read_numbers("/proc/self/status").get("VmRSS")
    return peak_memory() if held is None else 1024 * held


def available_memory() -> int:
    """Bytes that processes can still allocate, within the limit of the container."""
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
