"""How long commands take right after an installation, when nothing is compiled, and the next time.

    python -m benchmarks.first_use

The first commands of README.md, and its first training, each twice: what numba and XLA compile
goes into a folder that is empty before each command, so that none gains by another. Seconds of the
clock, and of all processors.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

from benchmarks.measuring import ROOT
from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError

_QPR = ("-m", "qpr_jax.cli.main")
_QUESTIONS = "sample/questions.csv"
_QUERY = "how can i measure a laptop for my kid"
COMMANDS = {
    "qpr sample": (*_QPR, "sample", "--out", "sample"),
    "qpr duplicates": (*_QPR, *f"duplicates {_QUESTIONS} --out pairs --max-distance 0.3".split()),
    "qpr index": (*_QPR, "index", "my_index", _QUESTIONS),
    "qpr search": (*_QPR, "search", "my_index", "--query", _QUERY, "-k", "3"),
    "synthetic_sdml": ("-m", "experiments.main", "--config=synthetic_sdml"),
}
_COMPILED = ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR")
_WRITES = {"qpr sample": "sample", "qpr duplicates": "pairs", "qpr index": "my_index"}


def seconds_of(words: tuple[str, ...], folder: pathlib.Path) -> tuple[float, float]:
    """Run a command in a folder; the seconds of the clock and of the processors.

    Raises:
      UserError: it failed.
    """
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    compiled = {name: str(folder / name) for name in _COMPILED}
    done = subprocess.run(
        [sys.executable, *words],
        **{"cwd": folder, "env": os.environ | compiled | {"PYTHONPATH": str(ROOT)}},
        **{"capture_output": True, "text": True, "check": False},
    )
    if done.returncode:
        raise UserError(f"{' '.join(words)} failed: {done.stderr.strip().splitlines()[-1]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - start, used


def main() -> int:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print("| command | first, s | of processors | then, s | of processors |")
    print("|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for command, words in COMMANDS.items():
            for compiled in _COMPILED:
                shutil.rmtree(folder / compiled, ignore_errors=True)
            cells = []
            for _ in range(2):
                shutil.rmtree(folder / _WRITES.get(command, "runs"), ignore_errors=True)
                cells += [f"{seconds:.1f}" for seconds in seconds_of(words, folder)]
            print(f"| {command} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
