"""Time and memory of the train step of a preset on the Quora pairs, over the size of a batch.

    python -m benchmarks.train [--quick] [--preset quora_sdml] [--sizes 512 4096]
        [--set precision=default]

Each size has a process of its own. It draws, lays out and trains on batches as a run does, without
evaluation. Each step alone, medians; the first steps compile. Then in flight: as in a training, the
host makes further batches while the device works.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks import report
from qpr_jax.cli.program import run_program

SIZES, WARM = (512, 2048, 8192, 16_384), 2
HEAD = ["pairs", "steps", "ms a step", "of it batches, ms", "in flight, ms", "pairs/s"]
HEAD += ["compile, s", "peak GiB"]


def measure(given: argparse.Namespace, size: int, seconds: float) -> list[str]:
    """Measure in this process, for about `seconds`; return a row."""
    import jax

    from qpr_jax.training.config import load_config
    from qpr_jax.training.dataset import load_dataset
    from qpr_jax.training.metrics import IN_FLIGHT
    from qpr_jax.training.sources import find_quora
    from qpr_jax.training.train import plan

    changes = dict(change.split("=", 1) for change in given.set)
    config = load_config(given.preset, {**changes, "batch_size": size})
    dataset = load_dataset(config, find_quora() if config.data.source == "quora" else None)
    (phase, *_), state = plan(config, dataset)
    whole: list[float] = []
    batches: list[float] = []
    while len(whole) < WARM + 3 or sum(whole[WARM:]) < seconds:
        start = time.perf_counter()
        batch, _ = phase.load(len(whole))
        batches.append(time.perf_counter() - start)
        state, metrics = phase.step(state, batch)
        float(metrics["loss"])
        whole.append(time.perf_counter() - start)
    done = len(whole)
    kept: list[Any] = []
    start = time.perf_counter()
    while len(kept) < 3 or time.perf_counter() - start < seconds / 2:
        state, metrics = phase.step(state, phase.load(done + len(kept))[0])
        kept.append(metrics)
        jax.block_until_ready(kept[:-IN_FLIGHT][-1:])
    jax.block_until_ready(kept)
    in_flight = (time.perf_counter() - start) / len(kept)
    if given.profile:
        with jax.profiler.trace(given.profile):
            jax.block_until_ready(phase.step(state, phase.load(done)[0]))
    median = statistics.median(whole[WARM:])
    cells = [f"{size:,}", f"{len(whole) - WARM}", f"{1e3 * median:.1f}"]
    cells += [f"{1e3 * statistics.median(batches[WARM:]):.1f}", f"{1e3 * in_flight:.1f}"]
    return [*cells, f"{size / in_flight:,.0f}", f"{whole[0]:.1f}", report.peak_gib()]


def main() -> int:
    """Measure."""
    parser = report.parser(__doc__)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--preset", default="quora_sdml")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--profile", metavar="FOLDER", help="write the profile of a step there")
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(measure(given, *map(int, given.worker))))
        return 0
    if given.quick and given.sizes == SIZES:
        given.sizes = SIZES[:2]
    rows = []
    for size in given.sizes:
        command = [sys.executable, "-m", "benchmarks.train", "--preset", given.preset]
        command += ["--worker", f"{size}", "5" if given.quick else "20"]
        command += [f"--set={change}" for change in given.set]
        command += [f"--profile={given.profile}"] if given.profile else []
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    title = ", ".join([f"Train steps of `{given.preset}`", *given.set])
    report.finish("train", given, [report.Table(title, HEAD, rows)])
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
