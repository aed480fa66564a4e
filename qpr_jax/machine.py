"""What this machine has."""

from __future__ import annotations

import os
import pathlib


def cpu_count() -> int:
    """The CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # macOS has none
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Bytes that processes here may still take, by the system's and its container's word."""
    limits = [1 << 62]
    if "MemAvailable" in (machine := _numbers("/proc/meminfo")):
        limits.append(1024 * machine["MemAvailable"])
    # A container's limit, less what its processes hold (not what it keeps of files).
    group = pathlib.Path("/sys/fs/cgroup")
    for limit, held in (("memory.max", "anon"), ("memory/memory.limit_in_bytes", "rss")):
        stat = group / ("memory.stat" if held == "anon" else "memory/memory.stat")
        if found := _numbers(group / limit):
            limits.append(max(0, found[""] - _numbers(stat).get(held, 0)))
    return min(limits)


def _numbers(path: str | pathlib.Path) -> dict[str, int]:
    """The numbers of a file of lines `NAME NUMBER`, or of a number alone, which has no name."""
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
