"""Time, compile time and memory of SDML's value and gradient, float32, 300 dimensions.

    python -m benchmarks.loss [--quick] [--sizes 512 4096] [--precisions highest default] [--both]
    python -m benchmarks.loss --against CHECKOUT

Each measurement has a process of its own and reports its best call. "over the products" divides the
time by that of three matrix products alone, 6 N^2 d operations, at the measured rate of a product
of 4096 x 4096; both directions need no more. `--against` takes turns with the package of another
checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks import report
from qpr_jax.cli.program import run_program

SIZES, DIM = (512, 4096, 16_384, 65_536), 300
HEAD = ["pairs", "precision", "s", "over the products", "compile, s", "peak GiB"]


def vectors(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return queries and candidates with distances like those in training."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((size, DIM), dtype=np.float32) for _ in range(2))
    scale = 2 / np.sqrt(DIM, dtype=np.float32)
    return scale * x, scale * (x + 0.5 * y)


def measure(size: int, symmetric: bool, precision: str) -> dict[str, float]:
    """Measure in this process."""
    import jax
    import jax.numpy as jnp

    from qpr_jax.losses import batch_loss, sdml_loss

    x, y = map(jnp.asarray, vectors(size))
    start = time.perf_counter()

    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        return batch_loss(sdml_loss, x, y, symmetric=symmetric)

    with jax.default_matmul_precision(precision):
        compiled = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(x, y).compile()
    compile_seconds = time.perf_counter() - start
    seconds: list[float] = []
    value = 0.0
    while len(seconds) < 2 or (sum(seconds) < 3 and len(seconds) < 50):
        start = time.perf_counter()
        value, _ = jax.block_until_ready(compiled(x, y))
        seconds.append(time.perf_counter() - start)
        if seconds[-1] > 60:
            break
    peak = float(report.peak_gib())
    found = {"seconds": min(seconds), "compile": compile_seconds, "peak": peak}
    return found | {"loss": float(value), "rate": product_rate(precision)}


def product_rate(precision: str) -> float:
    """Return the operations a second of a matrix product."""
    import jax
    import jax.numpy as jnp

    left = jnp.asarray(np.random.default_rng(0).standard_normal((4096, 4096), np.float32))
    product = jax.jit(lambda left: jnp.matmul(left, left, precision=precision))
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        product(left).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * 4096**3 / min(seconds)


def run(root: pathlib.Path, *arguments: object) -> dict[str, Any]:
    """Measure in a process that imports the package from `root`, without a compilation cache."""
    environment = os.environ | {"PYTHONPATH": f"{root}:{report.ROOT}"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, __file__, "--worker", *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd="/", stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(options: argparse.Namespace, size: int, symmetric: bool, precision: str) -> list[str]:
    """Measure a size, in turns with the other checkout."""
    ours, others = [], []
    for _ in range(options.rounds):
        ours.append(run(report.ROOT, size, int(symmetric), precision))
        if options.against:
            others.append(run(options.against.resolve(), size, int(symmetric), precision))
    best = min(one["seconds"] for one in ours)
    floor = 6 * size**2 * DIM / max(one["rate"] for one in ours)
    cells = [f"{size:,}{', symmetric' if symmetric else ''}", precision, f"{best:.4g}"]
    cells += [f"{best / floor:.2f}", f"{statistics.median(one['compile'] for one in ours):.1f}"]
    cells.append(f"{max(one['peak'] for one in ours):.2f}")
    if others:
        cells.append(f"{best / min(one['seconds'] for one in others):.2f}")
        cells.append(f"{max(one['peak'] for one in others):.2f}")
    return cells


def main() -> int:
    """Measure."""
    parser = report.parser(__doc__)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--precisions", nargs="+", default=["highest"])
    parser.add_argument("--both", action="store_true", help="measure both directions")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--against", type=pathlib.Path, help="a checkout to compare with")
    options = parser.parse_args()
    if options.worker:
        size, symmetric, precision = options.worker
        print(json.dumps(measure(int(size), symmetric == "1", precision)))
        return 0
    if options.quick:
        options.sizes, options.rounds = SIZES[:2], 1
    rows = [
        row(options, size, options.both, precision)
        for precision in options.precisions
        for size in options.sizes
    ]
    head = HEAD + (["time / before", "peak before"] if options.against else [])
    report.finish("loss", options, [report.Table("Value and gradient of SDML", head, rows)])
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
