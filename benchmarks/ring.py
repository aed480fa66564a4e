"""SDML over several devices: candidates passed around a ring, against gathered candidates.

    python -m benchmarks.ring [--devices 1 2 4 8] [--sizes 4096 16384] [--dim 300] [--rounds 3]
                              [--planned 131072 1048576] [--tile_numbers 1048576]

Each of K devices has n = N / K of N pairs. `sdml_loss` gathers all N candidates on each device and
computes value and gradient in one pass over tiles of queries: three products, 6 N^2 d operations.
In the ring the candidates visit the devices block by block, so that no device holds more than two
blocks. The gradient of a candidate needs the sums over all candidates, so there are two sweeps:
8 N^2 d operations. In the second the gradient of a block travels with it, and both are back on
their device after K moves.

"gather" is `sdml_loss` with its defaults; "gather, tiled" and "ring" hold `tile_numbers` distances
at a time. Each variant runs in processes of its own on K virtual CPU devices; the variants
alternate. The seconds (of the clock, and of all cores) and the peak of resident memory, which
includes that of JAX itself, are for all devices together. "XLA MiB" is what the compiler allocates
for one device: temporaries and results. Value and gradients are compared with those of "gather".
The `planned` sizes are only compiled, with the default size of tiles.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qpr_jax.losses.autodiff_tiles import split_tiles
from qpr_jax.losses.distances import mean_vector
from qpr_jax.losses.sdml import sdml_loss
from qpr_jax.losses.tiled_softmax import target_entropy
from qpr_jax.machine import peak_memory

VARIANTS = ("gather", "gather, tiled", "ring")
PLANNED_NUMBERS = 1 << 23  # distances in a tile of `sdml_loss(tile="auto")`
MIB = 1 << 20

product = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


class Block(NamedTuple):
    """The candidates of one device: vectors [n, d], squares [n] up to a constant."""

    vectors: jax.Array
    squares: jax.Array


def ring_loss(
    queries: jax.Array,
    candidates: jax.Array,
    *,
    smoothing: float = 0.3,
    tile: int,
    axis_name: Hashable,
) -> jax.Array:
    """`sdml_loss` of squared distances and the uniform prior, without gathering candidates.

    Args:
      queries: floating [n, d], this device's.
      candidates: floating [n, d], row i a paraphrase of query i.
      smoothing: the mass that is spread evenly, 0 to 1.
      tile: the number of queries whose distances to a block of n candidates are held at a time.
      axis_name: the axis of `jax.shard_map` that the batch is split over. As for `sdml_loss`,
        take gradients outside the map.
    """
    queries, candidates = queries.astype(jnp.float32), candidates.astype(jnp.float32)
    # One center for all devices, since a block is compared with the queries of each of them.
    center = mean_vector(lax.all_gather(candidates.mean(axis=0), axis_name))[None]
    queries, candidates = queries - center, candidates - center
    mean = lax.stop_gradient(lax.pmean((candidates**2).mean(axis=0), axis_name))[None]
    block = Block(candidates, (candidates**2 - mean).sum(axis=1))
    positive = 2 * (queries * candidates).sum(axis=1) - block.squares
    summed = summed_in_ring(queries, block, positive, smoothing, tile, axis_name)
    return lax.pmean(summed / len(queries), axis_name)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def summed_in_ring(
    queries: jax.Array,
    candidates: Block,
    positive: jax.Array,
    smoothing: float,
    tile: int,
    axis_name: Hashable,
) -> jax.Array:
    """The sum of the divergences of this device's queries; `positive` [n] are their own logits."""
    return _first_sweep(queries, candidates, positive, smoothing, tile, axis_name)[0]


def _first_sweep(
    queries: jax.Array,
    candidates: Block,
    positive: jax.Array,
    smoothing: float,
    tile: int,
    axis_name: Hashable,
) -> tuple[jax.Array, Any]:
    """The value, from each query's sums over all candidates but its own."""
    n, devices = len(queries), lax.axis_size(axis_name)
    tiles = split_tiles((queries, jnp.arange(n)), n, tile)

    def meet(carry: Any, move: jax.Array) -> tuple[Any, None]:
        block, *sums = carry

        def step(_: None, inputs: Any) -> tuple[None, Any]:
            (part, own, live), lse, total = inputs
            logits, hidden = _logits(part, own, live, block, move)
            found = jax.nn.logsumexp(jnp.where(hidden, -jnp.inf, logits), axis=0)
            total += jnp.where(hidden, 0, logits).sum(axis=0)
            return None, (jnp.logaddexp(lse, found), total)

        _, sums = lax.scan(step, None, (tiles, *sums))
        return (_passed_on(block, axis_name), *sums), None

    zeros = jnp.zeros_like(tiles[0][..., 0])
    start = (candidates, zeros - jnp.inf, zeros)
    (_, *sums), _ = lax.scan(meet, start, jnp.arange(devices))
    lse, total = (array.reshape(-1)[:n] for array in sums)

    count = jnp.float32(n * devices)
    each = jax.nn.softplus(lse - positive) - target_entropy(count, smoothing)
    each += smoothing * (positive - (total + positive) / count)
    return each.sum(), (queries, candidates, positive, lse)


def _second_sweep(
    smoothing: float, tile: int, axis_name: Hashable, kept: Any, weight: jax.Array
) -> tuple[jax.Array, Block, jax.Array]:
    """The gradient: each device adds the share of its queries to that of the visiting block."""
    queries, candidates, positive, lse = kept
    n, devices = len(queries), lax.axis_size(axis_name)
    share = smoothing / (n * devices)
    push = jax.nn.sigmoid(lse - positive)
    *tiles, live = split_tiles((queries, jnp.arange(n), push, lse), n, tile)

    def meet(carry: Any, move: jax.Array) -> tuple[Any, None]:
        block, of_block, of_queries = carry

        def step(of_block: Block, inputs: Any) -> tuple[Block, jax.Array]:
            part, own, push, lse, live, of_part = inputs
            logits, hidden = _logits(part, own, live, block, move)
            slope = weight * (push[None] * jnp.exp(logits - lse[None]) - share)
            slope = jnp.where(hidden, 0, slope)
            added = Block(2 * product(slope, part), -slope.sum(axis=1))
            of_part += 2 * product(block.vectors.T, slope).T
            return jax.tree.map(jnp.add, of_block, added), of_part

        of_block, of_queries = lax.scan(step, of_block, (*tiles, live, of_queries))
        return (*_passed_on((block, of_block), axis_name), of_queries), None

    start = (candidates, *jax.tree.map(jnp.zeros_like, (candidates, tiles[0])))
    (_, of_candidates, of_queries), _ = lax.scan(meet, start, jnp.arange(devices))
    of_queries = of_queries.reshape(-1, queries.shape[1])[:n]
    return of_queries, of_candidates, weight * (smoothing - share - push)


summed_in_ring.defvjp(_first_sweep, _second_sweep)


def _logits(
    part: jax.Array, own: jax.Array, live: jax.Array, block: Block, move: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The logits [n, t] of t queries against a block, and a mask of those to leave out.

    Left out are padding and the queries' own candidates, which are in the device's own block, the
    one before the first move.
    """
    logits = 2 * product(block.vectors, part.T) - block.squares[:, None]
    mine = (own[None] == jnp.arange(len(logits))[:, None]) & (move == 0)
    return logits, mine | ~live[None]


def _passed_on(tree: Any, axis_name: Hashable) -> Any:
    devices = lax.axis_size(axis_name)
    to_next = [(i, (i + 1) % devices) for i in range(devices)]
    return jax.tree.map(lambda array: lax.ppermute(array, axis_name, to_next), tree)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--sizes", type=int, nargs="*", default=[4096, 16384])
    parser.add_argument("--planned", type=int, nargs="*", default=[])
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tile_numbers", type=int, default=1 << 20)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measured(**json.loads(arguments.child))))
        return 0

    print("| pairs | devices | variant | seconds | core seconds | peak MiB | XLA MiB | agreement |")
    print("|---|---|---|---|---|---|---|---|")
    agree = True
    with tempfile.TemporaryDirectory() as folder:
        for size in [*arguments.sizes, *arguments.planned]:
            for devices in arguments.devices:
                agree &= compared(size, devices, arguments, pathlib.Path(folder))
    return 0 if agree else 1


def compared(size: int, devices: int, arguments: Any, folder: pathlib.Path) -> bool:
    """Print a row for each variant; whether all agree."""
    planned = size in arguments.planned
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for number in range(1 if planned else arguments.rounds):
        for variant in VARIANTS:
            task = {
                "variant": variant,
                "devices": devices,
                "size": size,
                "dim": arguments.dim,
                "numbers": PLANNED_NUMBERS if planned else arguments.tile_numbers,
                "planned": planned,
                "results": str(folder / f"{variant}.npz") if number == 0 else "",
            }
            found[variant].append(in_child(task))
    agree = True
    for variant, results in found.items():
        row = {name: np.median([result[name] for result in results]) for name in results[0]}
        cells = ["", "", "", f"{row['xla']:,.1f}", ""]
        if not planned:
            cells[:3] = f"{row['wall']:.2f}", f"{row['cores']:.2f}", f"{row['peak']:,.0f}"
            off = differences(np.load(folder / "gather.npz"), np.load(folder / f"{variant}.npz"))
            good = off[0] <= 1e-6 and off[1] <= 1e-5
            cells[4] = f"{'yes' if good else 'NO'}: {off[0]:.0e}, {off[1]:.0e}"
            agree &= good
        print(f"| {size:,} | {devices} | {variant} | {' | '.join(cells)} |", flush=True)
    return agree


def differences(one: Any, other: Any) -> tuple[float, float]:
    """The relative difference of values, and that of gradients by the largest entry."""
    sides = (abs(one[side] - other[side]).max() / abs(one[side]).max() for side in ("x", "y"))
    return float(abs(other["value"] / one["value"] - 1)), float(max(sides))


def in_child(task: dict[str, Any]) -> dict[str, float]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count"
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags}={task['devices']}"}
    command = [sys.executable, "-m", "benchmarks.ring", "--child", json.dumps(task)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def measured(
    variant: str, devices: int, size: int, dim: int, numbers: int, planned: bool, results: str
) -> dict[str, float]:
    """Seconds and memory of value and gradients, in this process."""
    columns = size // devices if variant == "ring" else size
    tile = "auto" if variant == "gather" else max(1, numbers // columns)
    loss = ring_loss if variant == "ring" else sdml_loss
    mesh, split = Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data")
    mapped = jax.shard_map(
        functools.partial(loss, tile=tile, axis_name="data"),
        mesh=mesh,
        in_specs=(split, split),
        out_specs=PartitionSpec(),
    )
    over = NamedSharding(mesh, split)
    shape = jax.ShapeDtypeStruct((size, dim), jnp.float32, sharding=over)
    step = jax.jit(jax.value_and_grad(mapped, argnums=(0, 1))).lower(shape, shape).compile()
    memory = step.memory_analysis()
    found = {"xla": (memory.temp_size_in_bytes + memory.output_size_in_bytes) / MIB}
    if planned:
        return found

    rng = np.random.default_rng(0)
    queries = rng.normal(size=(size, dim), scale=2 / dim**0.5)
    candidates = queries + rng.normal(size=(size, dim), scale=1 / dim**0.5)
    batch = [jax.device_put(np.float32(side + 3), over) for side in (queries, candidates)]
    del queries, candidates
    jax.block_until_ready(step(*batch))
    start, cores = time.perf_counter(), time.process_time()
    value, gradients = jax.block_until_ready(step(*batch))
    found["wall"], found["cores"] = time.perf_counter() - start, time.process_time() - cores
    found["peak"] = peak_memory() / 2**20
    if results:
        np.savez(results, value=value, x=gradients[0], y=gradients[1])
    return found


if __name__ == "__main__":
    sys.exit(main())
