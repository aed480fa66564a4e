"""How long configs train from nothing: a run each, in a process of its own, one after the other.

    python -m benchmarks.training_times --folder runs quora_sdml distill
    python -m benchmarks.training_times --folder runs distill --flag config.data.path=questions.txt

A run is kept as FOLDER/CONFIG; one that is there is refused, since it would only be resumed, unless
`--replace` is given. The teacher's vectors are always computed, never read from a cache. `minutes`
is the whole program: reading, training, index and scores; `training` its steps, at median rates;
H@1 and MRR those of the test queries by exact search; `agreement`, of an imitation without pairs,
the share of the teacher's ten nearest questions that the student finds.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError
from qpr_jax.files import read_json

_COLUMNS = ("minutes", "training, s", "an epoch, s", "peak, GiB", "H@1", "MRR", "agreement")


def train(config: str, folder: pathlib.Path, flags: list[str]) -> float:
    """Train a config in a folder of its own; the seconds of the whole program.

    flags: as of `experiments.main`, without the dashes.

    Raises:
      UserError: the training failed.
    """
    with tempfile.TemporaryDirectory() as cache:
        start = time.monotonic()
        command = [sys.executable, "-m", "experiments.main", f"--config={config}"]
        done = subprocess.run(
            [*command, f"--workdir={folder}", *(f"--{flag}" for flag in flags)],
            env=os.environ | {"XDG_CACHE_HOME": cache},
            stdout=sys.stderr,
            check=False,
        )
    if done.returncode:
        raise UserError(f"the training of {config} failed; see its output above")
    return time.monotonic() - start


def cells(seconds: float, report: dict[str, Any]) -> list[str]:
    """A row of the table from a run's report, empty where it has no such number."""
    timing, test = report["timing"], report.get("test", {})
    exact = test.get("exact", {}).get("per_query", {})
    found = {
        "minutes": f"{seconds / 60:.2f}",
        "training, s": f"{timing['train_seconds']:.1f}" if "train_seconds" in timing else "",
        "an epoch, s": f"{timing['epoch_seconds']:.1f}" if "epoch_seconds" in timing else "",
        "peak, GiB": f"{timing['peak_memory_gib']:.2f}",
        "H@1": f"{exact['hits@1']:.4f}" if exact else "",
        "MRR": f"{exact['mrr@20']:.4f}" if exact else "",
        "agreement": f"{test['agreement']:.4f}" if "agreement" in test else "",
    }
    return [found[name] for name in _COLUMNS]


def main() -> int:
    """Train the configs and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="+", help="as of `experiments.main --config`")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where runs are kept")
    parser.add_argument("--replace", action="store_true", help="runs that are there")
    parser.add_argument("--flag", action="append", default=[], metavar="config.NAME=VALUE")
    given = parser.parse_args()
    print(f"| config | {' | '.join(_COLUMNS)} |\n|---{'|---:' * len(_COLUMNS)}|", flush=True)
    for config in given.configs:
        folder = given.folder / config.replace(":", "_")
        if folder.exists():
            if not given.replace:
                raise UserError(f"{folder} is there", remedy="name another folder, or replace it")
            shutil.rmtree(folder)
        seconds = train(config, folder, given.flag)
        row = cells(seconds, read_json(folder / "report.json"))
        print(f"| {config} | {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
