"""Measurements on CPU, each in a process of its own, with its own start and peak of memory.

A program that calls `run` must not create large arrays itself: a process inherits the peak of
memory of its parent.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError
from qpr_jax.machine import peak_memory

if TYPE_CHECKING:
    pass

_CHILD = "--child"
# Huge pages as in `experiments.main`, also for PyTorch: see `use_huge_pages`.
_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "JAX_PLATFORMS": "cpu"}


ROOT = pathlib.Path(__file__).resolve().parent.parent


class TooLong(Exception):
    """The process was killed at its time limit."""


def program(main: Callable[[], int], measure: Callable[..., dict[str, Any]]) -> int:
    """Run `main`, or `measure` in a process that `run` started; the exit status."""
    if sys.argv[1:2] == [_CHILD]:
        try:
            print(json.dumps(measure(**json.loads(sys.argv[2]))))
        except Exception as error:  # of any kind: the parent prints it as one line
            sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
        return 0
    return run_program(main)


def run(
    module: str,
    arguments: dict[str, Any],
    *,
    limit: float | None = None,
    environment: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Call `measure` of `module` with these arguments in a new process; its result.

    Raises:
      TooLong: it took more than `limit` seconds, its start included.
      UserError: it failed; the reason is its last line.
    """
    command = [sys.executable, "-m", module, _CHILD, json.dumps(arguments)]
    environment = _ENVIRONMENT | dict(os.environ) | (environment or {})
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TooLong from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        reason = "killed, for lack of memory?" if done.returncode == -9 else lines[-1]
        raise UserError(f"the measurement of {arguments} failed: {reason}")
    return json.loads(done.stdout.splitlines()[-1])


def commit() -> str | None:
    """The commit of this checkout, with "-dirty" where its code was changed since; else None."""

    def git(*words: str) -> str | None:
        try:
            command = ["git", "-C", str(ROOT), *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return None
        return None if done.returncode else done.stdout.strip()

    found = git("rev-parse", "--short=10", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", ":!results", ":!*.md")
    return f"{found}-dirty" if found and changed else found


def positive(text: str) -> int:
    """The positive number in the text of a flag, for argparse."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return int(text)


def peak_gib() -> float:
    """The peak of this process's memory."""
    return peak_memory() / 2**30


def best_of(call: Callable[[], Any], *, most: int = 5, seconds: float = 10) -> tuple[float, Any]:
    """The shortest time of `call`, called up to `most` times in about `seconds`; and its result."""
    times: list[float] = []
    while len(times) < most and sum(times) < seconds:
        result = None  # otherwise two results would be in memory at once
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return min(times), result


class Clock:
    """The seconds that are left of what may be spent."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    @property
    def left(self) -> float:
        """Below 0 when they are spent."""
        return self._end - time.perf_counter()


def seconds_in_turns(
    calls: Mapping[Hashable, Callable[[], Any]], *, rounds: int = 5, limit: float = math.inf
) -> dict[Hashable, float]:
    """The median time of each call over rounds, the calls alternating.

    The calls have been warmed up. No round begins after `limit` seconds, but for the first.
    """
    times: dict[Hashable, list[float]] = {key: [] for key in calls}
    clock = Clock(limit)
    for number in range(rounds):
        if number and clock.left < 0:
            break
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            times[key].append(time.perf_counter() - start)
    return {key: statistics.median(found) for key, found in times.items()}


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown, with an empty line after it."""
    return [
        "|" + "|".join(f" {title} " if title else " " for title in head) + "|",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(cells)} |" for cells in rows),
        "",
    ]
