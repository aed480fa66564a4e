"""What a command will take and what it took, in one line each."""

from __future__ import annotations

import os
import pathlib
import shutil
import time
from dataclasses import dataclass
from typing import NoReturn

from qpr_jax.amounts import duration, rounded, size
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.machine import available_memory, held_memory, peak_memory

WRITE_RATE = 4e8  # bytes a second: written to the end, read again and hashed


@dataclass(frozen=True)
class Estimate:
    """What a command will take.

    Attributes:
      seconds: of the command.
      memory: the most that the process holds at once, in bytes.
      disk: the most bytes that it adds to the disk at once.
      count: how many things it goes through.
      unit: what these are.
      rate: how many of them it encodes, or compares, or trains on, a second.
      exact: whether `count` is known.
      at_most: whether it may well take less time.
    """

    seconds: float
    memory: int
    disk: int
    count: int = 0
    unit: str = "questions"
    rate: float = 0.0
    exact: bool = True
    at_most: bool = False

    def line(self) -> str:
        """As `about 3 min, 1.2 GB memory, 0.7 GB disk; 2,000,000 questions, 16,000 a second`."""
        about, start = "" if self.exact else "about ", "at most" if self.at_most else "about"
        takes = f"{size(self.memory)} memory, {size(self.disk)} disk"
        return (
            f"{start} {duration(self.seconds)}, {takes}; "
            f"{about}{self.count:,} {self.unit}, {rounded(self.rate)} a second"
        )


def fits(estimate: Estimate, path: StrPath) -> bool:
    """Whether memory, and the disk where `path` is or will be, can hold it."""
    more = estimate.memory - held_memory()
    return more <= available_memory() and estimate.disk <= free_disk(path)


def refuse(estimate: Estimate, path: StrPath, *, remedy: str) -> NoReturn:
    """Raise the UserError of an estimate that does not fit."""
    more, free = max(0, estimate.memory - held_memory()), available_memory()
    kind = "memory"
    if more <= free:
        more, free, kind = estimate.disk, free_disk(path), "disk"
    about = "" if estimate.exact else "about "
    raise UserError(
        f"{about}{estimate.count:,} {estimate.unit}: expected {size(more)} of free {kind}, got "
        f"{size(free)}",
        remedy=remedy,
    )


class Stopwatch:
    """What a command has taken since it began."""

    def __init__(self, path: StrPath) -> None:
        """path: the file or the folder that it writes, whose growth is its disk."""
        self._path, self._began = path, time.monotonic()
        self._before = disk_of(path)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def line(self) -> str:
        """As `took 2 min 51 s, 1.1 GB memory, 0.7 GB disk`."""
        disk, memory = max(0, disk_of(self._path) - self._before), size(peak_memory())
        return f"took {duration(self.seconds)}, {memory} memory, {size(disk)} disk"


def free_disk(path: StrPath) -> int:
    """Bytes that are free on the disk where a path is, or will be."""
    folder = pathlib.Path(path).absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def disk_of(path: StrPath) -> int:
    """The bytes of a file, or of all files below a folder; 0 where there is none."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    sizes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            sizes += os.lstat(os.path.join(folder, name)).st_size
    return sizes
