"""Pairs a second of the train step of a large batch over those of a small one.

    python -m benchmarks.large_batch [--sizes=512,16384] [--rounds=5]

The steps of `quora_sdml` at all sizes alternate in one process, each size with and without the
chunks of `batch.encode_chunk`, and each round of a size does the same number of pairs. What is
compared are the fastest rounds: by the clock, and by the time of the processor, which other
programs disturb less. Beside them stands the floor of the loss: its 6 N^2 d operations at the
rate of a matrix product of 4,096 rows and columns.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.batch_size_scaling import ENCODE_CHUNK
from experiments.trials import load
from qpr_jax.data.sources import find_quora
from qpr_jax.training.dataset import TrainDataset, load_dataset
from qpr_jax.training.stages import build_plan


class Seconds(NamedTuple):
    """Of some work: by the clock, and of all cores of this process."""

    clock: float
    processor: float


def measure(work: Callable[[], object]) -> Seconds:
    """Time `work`, with what it leaves to compute."""
    clock, processor = time.perf_counter(), time.process_time()
    jax.block_until_ready(work())
    return Seconds(time.perf_counter() - clock, time.process_time() - processor)


def fastest(times: list[Seconds]) -> Seconds:
    return Seconds(*map(min, zip(*times, strict=True)))


def make_round(dataset: TrainDataset, size: int, chunk: int, pairs: int) -> Callable[[], object]:
    """A function that trains on `pairs` pairs in batches of `size`, laid out each time."""
    config = load("quora_sdml", {"batch_size": size, "batch.encode_chunk": chunk})
    plan = build_plan(config, dataset)
    loader, train = plan.stages[0].objectives[0]
    state = plan.state

    def work() -> object:
        nonlocal state
        for _ in range(pairs // size):
            state, metrics = train.step(state, loader.batch(0, plan.mesh))
        return metrics["loss"]

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="512,16384")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]

    config = load("quora_sdml")
    dataset = load_dataset(config, find_quora())
    rows = {
        (size, chunk): make_round(dataset, size, chunk, max(sizes))
        for size in sizes
        for chunk in ((0, ENCODE_CHUNK) if size > ENCODE_CHUNK else (0,))
    }
    square = jnp.ones((4096, 4096))
    product = jax.jit(lambda matrix: jnp.matmul(matrix, matrix, precision="highest"))
    for work in (*rows.values(), lambda: product(square)):
        jax.block_until_ready(work())  # compile
    times: dict[tuple[int, int], list[Seconds]] = {name: [] for name in rows}
    products = []
    for _ in range(arguments.rounds):
        products.append(measure(lambda: product(square)))
        for name, work in rows.items():
            times[name].append(measure(work))

    best = {name: fastest(found) for name, found in times.items()}
    first = best[sizes[0], 0]
    cores, load_now = os.cpu_count(), os.getloadavg()[0]
    print(
        f"{jax.devices()[0].device_kind}, {cores} cores, load {load_now:.1f}, best of "
        f"{arguments.rounds} rounds of {max(sizes):,} pairs"
    )
    for (size, chunk), found in best.items():
        floor = 6 * size**2 * config.encoder.output_dim / (2 * 4096**3)
        steps = max(sizes) // size
        print(
            f"N = {size:,}, chunks of {chunk or size:,}: {found.clock / steps:.3f} s a step "
            f"({found.processor / steps:.3f} s of the processor, floor of the loss "
            f"{floor * fastest(products).processor:.3f} s); pairs a second over the first: "
            f"{first.clock / found.clock:.2f} by the clock, "
            f"{first.processor / found.processor:.2f} by the processor"
        )


if __name__ == "__main__":
    main()
