"""CPU measurements in processes of their own: each starts cold, with a peak of memory of its own.

The programs that use `run` make no array but in the processes they start: a parent that held any
would hand its peak of memory on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError
from qpr_jax.machine import peak_memory

if TYPE_CHECKING:
    from qpr_jax.encoders.base import Encoder

_CHILD = "--child"
# Huge pages as in `experiments.main`: without, a quarter of a step is the touching of new memory.
# PyTorch gets them too.
_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "JAX_PLATFORMS": "cpu"}


class TooLong(Exception):
    """The process was killed at its time limit."""


def program(main: Callable[[], int], measure: Callable[..., dict[str, Any]]) -> int:
    """The program `main`, or, in a process that `run` started, one `measure`; the exit status."""
    if sys.argv[1:2] == [_CHILD]:
        try:
            print(json.dumps(measure(**json.loads(sys.argv[2]))))
        except Exception as error:  # of any kind: the parent tells it in one line
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
    """What `measure` of `module` returns for these arguments in a fresh process.

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
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        reason = "killed, for lack of memory?" if done.returncode == -9 else lines[-1]
        raise UserError(f"a measurement failed: {reason}; its arguments: {arguments}")
    return json.loads(done.stdout.splitlines()[-1])


def positive(text: str) -> int:
    """The number of a flag."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return int(text)


def peak_gib() -> float:
    """The most memory that this process has held at once."""
    return peak_memory() / 2**30


def best_of(call: Callable[[], Any], *, most: int = 5, seconds: float = 10) -> tuple[float, Any]:
    """The least time of a call, of at most so many calls in about so many seconds; its result."""
    times: list[float] = []
    while len(times) < most and sum(times) < seconds:
        result = None  # else two results are in memory at once
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return min(times), result


def rates_in_turns(
    encoders: Mapping[str, tuple[Encoder, list[str]]], rounds: int
) -> dict[str, float]:
    """Questions a second from strings to vectors, the median of rounds, in turns.

    encoders: each with the questions that it is timed on.
    """
    rates: dict[str, list[float]] = {name: [] for name in encoders}
    for lap in range(1 + rounds):
        for name, (encoder, questions) in encoders.items():
            start = time.perf_counter()
            encoder.encode(questions)
            if lap:  # the first compiles
                rates[name].append(len(questions) / (time.perf_counter() - start))
    return {name: statistics.median(found) for name, found in rates.items()}
