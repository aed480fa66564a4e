"""Time and memory of SDML's value and gradient, from 512 to 131,072 pairs, float32.

    python -m benchmarks.loss [--sizes 512 1024] [--variants tiled plain] [--out FILE]

The loss has squared distances, a uniform prior, smoothing 0.3 and 300 dimensions. "tiled" is the
default of `sdml_loss`; "plain" holds all distances at once; "autodiff" computes the plain formula
in the same tiles and lets JAX differentiate each tile; "torch" is the plain formula in PyTorch and
"torch_ce" its `cross_entropy` with label smoothing (`pip install torch`; both are left out where
PyTorch is missing).

Each measurement runs in a process of its own; the variants alternate. A process reports the best
time of a few calls after compiling, and its peak memory; the table has the medians over the rounds.
"over the floor" divides the time by that of the matrix products alone: 6 N^2 d operations (8 N^2 d
for both directions, which need one product more) at the rate of a product of 4096 x 4096.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import math
import os
import pathlib
import statistics
import sys
from typing import Any

import numpy as np

from benchmarks.measuring import TooLong, best_of, peak_gib, positive, program, run
from qpr_jax.errors import UserError

SMOOTHING = 0.3
SIZES = (512, 2048, 8192, 16384, 32768, 65536, 131072)
VARIANTS = {
    "tiled": "tiled",
    "plain": "plain",
    "both": "tiled, both directions",
    "autodiff": "tiled by autodiff",
    "torch": "PyTorch",
    "torch_ce": "PyTorch, cross_entropy",
}
# float32 values per distance that the variants without tiles hold at once, measured at N = 4,096.
NUMBERS = {"plain": 6, "torch": 6, "torch_ce": 4}
RATE = "rate"


def measure(variant: str, size: int, dim: int, devices: int) -> dict[str, Any]:
    """Run one measurement, in this process."""
    if variant == RATE:
        return {"rate": matmul_rate()}
    setup = of_torch if variant.startswith("torch") else of_jax
    return setup(variant, size, dim, devices)


def of_jax(variant: str, size: int, dim: int, devices: int) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from qpr_jax.losses import sdml_loss
    from qpr_jax.losses.dispatch import choose_method

    default = None if variant == "plain" else "auto"
    tile = choose_method(default, size // devices, size, distance="ssd", prior="uniform").tile
    if variant == "autodiff":
        loss = functools.partial(loss_by_autodiff, tile=tile)
    else:
        how = {"smoothing": SMOOTHING, "symmetric": variant == "both", "tile": default}
        loss = functools.partial(sdml_loss, **how)
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    split = PartitionSpec("data")
    if devices > 1:
        loss = functools.partial(loss, axis_name="data")
        loss = jax.shard_map(loss, mesh=mesh, in_specs=(split, split), out_specs=PartitionSpec())
    start = peak_gib()
    x, y = (jax.device_put(jnp.asarray(a), NamedSharding(mesh, split)) for a in pairs(size, dim))
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(x, y).compile()
    seconds, (value, gradients) = best_of(lambda: jax.block_until_ready(compiled(x, y)))
    found = {"seconds": seconds, "peak_gib": peak_gib(), "start_gib": start, "tile": tile}
    return found | {"loss": float(value), "slope": slope((x, y), gradients)}


def of_torch(variant: str, size: int, dim: int, devices: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(os.cpu_count())
    torch.ones(1, requires_grad=True).sum().backward()  # so that `start` includes autograd itself
    start = peak_gib()
    x, y = (torch.from_numpy(a).requires_grad_() for a in pairs(size, dim))
    loss = torch_cross_entropy if variant == "torch_ce" else torch_loss

    def value_and_gradient():
        x.grad = y.grad = None
        value = loss(x, y)
        value.backward()
        return value.item()

    seconds, value = best_of(value_and_gradient)
    found = {"seconds": seconds, "peak_gib": peak_gib(), "start_gib": start, "tile": None}
    sides = (x.detach().numpy(), y.detach().numpy())
    return found | {"loss": value, "slope": slope(sides, (x.grad.numpy(), y.grad.numpy()))}


def pairs(size: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries and candidates, float32 [size, dim], with distances similar to those in training.

    The second half is the first with sides and signs exchanged. So both directions have the same
    loss, and all variants must return the same value.
    """
    rng = np.random.default_rng(0)
    x, y = np.empty((2, size, dim), np.float32)
    half = size // 2
    rng.standard_normal(out=x[:half], dtype=np.float32)
    rng.standard_normal(out=y[:half], dtype=np.float32)
    y[:half] = x[:half] + 0.5 * y[:half]
    for side in (x[:half], y[:half]):
        side *= 2 / math.sqrt(dim)
    x[half:], y[half:] = -y[:half], -x[:half]
    return x, y


def slope(vectors: tuple[Any, Any], gradients: tuple[Any, Any]) -> float:
    """The derivative of the loss by the scale of all vectors, to compare gradients by."""
    both = zip(vectors, gradients, strict=True)
    return sum(float(np.vdot(np.asarray(a, np.float64), np.asarray(g))) for a, g in both)


def loss_by_autodiff(x, y, *, tile):
    """SDML by its plain formula, a few rows at a time."""
    import jax
    import jax.numpy as jnp

    from qpr_jax.losses.autodiff_tiles import sum_in_tiles

    def divergences(x, y, own, _):
        squared = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None] - 2 * x @ y.T
        log_p = jax.nn.log_softmax(-squared, axis=1)
        positive = jnp.take_along_axis(log_p, own, axis=1)[:, 0]
        cross_entropy = -(1 - SMOOTHING) * positive - SMOOTHING * log_p.mean(axis=1)
        return cross_entropy - target_entropy(y.shape[0])

    own = jnp.arange(x.shape[0])[:, None]
    return sum_in_tiles(divergences, x, y, own, None, tile) / x.shape[0]


def torch_loss(x, y):
    """SDML by its plain formula, in PyTorch."""
    import torch
    from torch.nn import functional

    count = len(y)
    log_p = functional.log_softmax(-torch_distances(x, y), dim=1)
    targets = torch.full((len(x), count), SMOOTHING / count, device=x.device)
    targets.diagonal().add_(1 - SMOOTHING)
    return functional.kl_div(log_p, targets, reduction="batchmean")


def torch_cross_entropy(x, y):
    """SDML by PyTorch's cross entropy with label smoothing, less the entropy of the targets."""
    import torch
    from torch.nn import functional

    logits, own = -torch_distances(x, y), torch.arange(len(x), device=x.device)
    value = functional.cross_entropy(logits, own, label_smoothing=SMOOTHING)
    return value - target_entropy(len(y))


def torch_distances(x, y):
    return (x**2).sum(dim=1)[:, None] + (y**2).sum(dim=1)[None] - 2 * x @ y.T


def target_entropy(count: int) -> float:
    own, other = 1 - SMOOTHING + SMOOTHING / count, SMOOTHING / count
    return -own * math.log(own) - (count - 1) * other * math.log(other)


def matmul_rate() -> float:
    """Operations a second of a float32 matrix product."""
    import jax
    import jax.numpy as jnp

    n = 4096
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.standard_normal((n, n), np.float32)) for _ in range(2))
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision="highest")).lower(a, b).compile()
    return 2 * n**3 / best_of(lambda: product(a, b).block_until_ready(), most=20)[0]


def available_gib() -> float:
    meminfo = pathlib.Path("/proc/meminfo")
    if not meminfo.is_file():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    lines = (line.split() for line in meminfo.read_text().splitlines())
    return next(int(line[1]) for line in lines if line[0] == "MemAvailable:") / 2**20


def main() -> int:
    arguments = parse()
    variants = arguments.variants
    if importlib.util.find_spec("torch") is None and any(v.startswith("torch") for v in variants):
        print("PyTorch is not installed, so its variants are left out: `pip install torch`\n")
        variants = [name for name in variants if not name.startswith("torch")]
    rate = run("benchmarks.loss", task(RATE, arguments, 0))["rate"]
    print(f"{os.cpu_count()} cores, {rate / 1e9:,.0f} GFLOP/s, d = {arguments.dim}\n")
    print("| N | variant | rows a tile | s | over the floor | peak GiB | before the arrays |")
    print("|---" * 7 + "|", flush=True)
    disagree, measured = [], 0
    ended: dict[str, str] = {}  # variant -> the reason why it is no longer measured
    for size in sorted(arguments.sizes):
        found = measure_size(arguments, variants, size, ended)
        for name in variants:
            print(row(name, size, arguments, rate, found[name], ended.get(name)), flush=True)
        rounds = [result for results in found.values() for result in results]
        measured += len(rounds)
        for what, tolerance in (("loss", 1e-5), ("slope", 1e-4)) if rounds else ():
            values = [result[what] for result in rounds]
            if max(values) - min(values) > tolerance * abs(values[0]):
                disagree.append(f"N = {size}: {what} from {min(values)!r} to {max(values)!r}")
    if disagree:
        raise UserError(f"expected the same loss and gradient from all variants, got {disagree}")
    if not measured:
        raise UserError(
            "expected a measurement, got none", remedy="raise `--limit` or choose smaller `--sizes`"
        )
    print("\nAll variants gave the same loss (within 1e-5) and slope in the scale (1e-4).")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes", nargs="+", type=positive, default=SIZES, help="even numbers of pairs"
    )
    parser.add_argument("--dim", type=positive, default=300)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--limit", type=positive, default=600, help="seconds for one process")
    parser.add_argument("--devices", type=positive, default=1, help="virtual devices for `tiled`")
    parser.add_argument(
        "--out", type=pathlib.Path, help="write all results to this file, as JSON lines"
    )
    arguments = parser.parse_args()
    for size in arguments.sizes:
        if size % 2 or size % arguments.devices:
            parser.error(f"--sizes: expected even numbers that --devices divides, got {size}")
    if arguments.out:
        arguments.out.write_text("")
    return arguments


def task(variant: str, arguments: argparse.Namespace, size: int) -> dict[str, Any]:
    devices = arguments.devices if variant == "tiled" else 1
    return {"variant": variant, "size": size, "dim": arguments.dim, "devices": devices}


def measure_size(
    arguments: argparse.Namespace, variants: list[str], size: int, ended: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """Measure all rounds of each variant; add those that fail to `ended`, with the reason."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    for number in range(arguments.rounds):
        for name in variants:
            needs = NUMBERS.get(name, 0) * 4 * size**2 / 2**30
            if needs > available_gib():
                ended[name] = f"needs {needs:.0f} GiB"
            if name in ended:
                continue
            given = task(name, arguments, size)
            flags = f"--xla_force_host_platform_device_count={given['devices']}"
            try:
                result = run(
                    "benchmarks.loss",
                    given,
                    limit=arguments.limit,
                    environment={"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}"},
                )
            except TooLong:
                ended[name] = f"killed after {arguments.limit} s at N = {size:,}"
                continue
            except UserError as error:
                print(f"error: {error}", file=sys.stderr)
                ended[name] = f"failed at N = {size:,}"
                continue
            found[name].append(result)
            print(f"N = {size}, round {number}, {name}: {result['seconds']:.3f} s", file=sys.stderr)
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(json.dumps({"round": number, **given, **result}) + "\n")
    return found


def row(
    variant: str,
    size: int,
    arguments: argparse.Namespace,
    rate: float,
    results: list[dict[str, Any]],
    why_none: str | None,
) -> str:
    name = VARIANTS[variant]
    if variant == "tiled" and arguments.devices > 1:
        name += f", {arguments.devices} devices"
    if not results:
        return f"| {size:,} | {name} | | {why_none} | | | |"
    middle = {
        what: statistics.median(result[what] for result in results)
        for what in ("seconds", "peak_gib", "start_gib")
    }
    floor = (8 if variant == "both" else 6) * size**2 * arguments.dim / rate
    seconds = middle["seconds"]
    return (
        f"| {size:,} | {name} | {results[0]['tile'] or 'all'} | {seconds:.4g} "
        f"| {seconds / floor:.2f} | {middle['peak_gib']:.2f} | {middle['start_gib']:.2f} |"
    )


if __name__ == "__main__":
    sys.exit(program(main, measure))
