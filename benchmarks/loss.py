"""Time, compile time and memory of SDML's value and gradient, float32, 300 dimensions.

    python -m benchmarks.loss [--quick] [--sizes 512 4096] [--against FOLDER] [--out PAGE]

Each measurement runs in a process of its own and reports its best call. "over the products" divides
the time by that of the three matrix products alone, 6 N^2 d operations at the rate of a product of
4096 x 4096. `--against` alternates with the package of another checkout and adds the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

SIZES = (512, 4096, 16_384, 65_536)
DIM = 300
ROOT = pathlib.Path(__file__).resolve().parent.parent


def vectors(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries and candidates with distances similar to those in training."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((size, DIM), dtype=np.float32) for _ in range(2))
    scale = 2 / np.sqrt(DIM, dtype=np.float32)
    return scale * x, scale * (x + 0.5 * y)


def measure(size: int, symmetric: bool) -> dict[str, float]:
    """Run one measurement, in this process."""
    import jax
    import jax.numpy as jnp

    from qpr_jax.losses import sdml_loss

    x, y = map(jnp.asarray, vectors(size))
    start = time.perf_counter()
    loss = jax.value_and_grad(lambda x, y: sdml_loss(x, y, symmetric=symmetric), (0, 1))
    compiled = jax.jit(loss).lower(x, y).compile()
    compile_seconds = time.perf_counter() - start
    seconds, value = [], 0.0
    while len(seconds) < 2 or (sum(seconds) < 3 and len(seconds) < 50):
        start = time.perf_counter()
        value, _ = jax.block_until_ready(compiled(x, y))
        seconds.append(time.perf_counter() - start)
        if seconds[-1] > 60:
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    best = min(seconds)
    return {"seconds": best, "compile": compile_seconds, "peak": peak, "loss": float(value)}


def product_rate() -> float:
    """Operations a second of a float32 matrix product."""
    import jax
    import jax.numpy as jnp

    left = jnp.asarray(np.random.default_rng(0).standard_normal((4096, 4096), np.float32))
    product = jax.jit(lambda left: jnp.matmul(left, left, precision="highest"))
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        product(left).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * 4096**3 / min(seconds)


def run(root: pathlib.Path, size: int, symmetric: bool) -> dict[str, Any]:
    """Measure in a process that imports the package from `root`, and compiles without a cache."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, __file__, "--worker", str(size), str(int(symmetric))]
    done = subprocess.run(command, env=environment, cwd="/", stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(size: int, symmetric: bool, arguments: argparse.Namespace, rate: float) -> str:
    """Measure a size, alternating with the other checkout, and format its row."""
    ours, others = [], []
    for _ in range(arguments.rounds):
        ours.append(run(ROOT, size, symmetric))
        if arguments.against:
            others.append(run(arguments.against, size, symmetric))
    for one in (*ours, *others):
        if abs(one["loss"] - ours[0]["loss"]) > 1e-5 * abs(ours[0]["loss"]):
            raise SystemExit(f"N = {size}: expected one loss, got {one} and {ours[0]}")
    best = min(one["seconds"] for one in ours)
    floor = (12 if symmetric else 6) * size**2 * DIM / rate
    cells = [
        f"{size:,}" + (", symmetric" if symmetric else ""),
        f"{best:.4g}",
        f"{best / floor:.2f}",
        f"{statistics.median(one['compile'] for one in ours):.1f}",
        f"{max(one['peak'] for one in ours):.2f}",
    ]
    if others:
        other = min(one["seconds"] for one in others)
        cells.append(f"{best / other:.2f}")
        cells.append(f"{statistics.median(one['compile'] for one in others):.1f}")
        cells.append(f"{max(one['peak'] for one in others):.2f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="512 and 4,096 pairs, once")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--against", type=pathlib.Path, help="a checkout to compare with")
    parser.add_argument("--out", type=pathlib.Path, help="write the page to this file")
    arguments = parser.parse_args()
    if arguments.worker:
        size, symmetric = arguments.worker
        print(json.dumps(measure(size, bool(symmetric))))
        return
    if arguments.quick:
        arguments.sizes, arguments.rounds = SIZES[:2], 1
    rate = product_rate()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    heads = ["N", "s", "over the products", "compile s", "peak GiB"]
    if arguments.against:
        heads += ["time / before", "before: compile s", "before: peak GiB"]
    lines = [
        "# The loss",
        "",
        "Value and gradient of SDML, float32, d = 300, smoothing 0.3. Written by",
        "`python -m benchmarks.loss`; each number is the best call of the processes of a size.",
        "",
        f"{os.cpu_count()} cores, {platform.machine()}, {rate / 1e9:,.0f} GFLOP/s in products, "
        f"load {os.getloadavg()[0]:.1f} at the start, commit {commit or 'unknown'}.",
        "",
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
    ]
    print("\n".join(lines), flush=True)
    for size, symmetric in [(size, False) for size in arguments.sizes] + [(1024, True)]:
        lines.append(row(size, symmetric, arguments, rate))
        print(lines[-1], flush=True)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
