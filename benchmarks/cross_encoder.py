"""How fast a cross-encoder scores pairs and is trained, beside the floor of its products.

    [taskset -c 0] python -m benchmarks.cross_encoder [--model runs/quora_cross_encoder]

Scores pairs of neighbors among the first questions of the Quora file, or of a generated log if
there is no such file, and trains on batches of 64 of them, in float32 and in bfloat16, after a
first round that compiles. The floor is what the products of the layers alone take, three times as
many for a training step, at the rate of one float32 product of their size. Seconds of CPU are those
of all threads: they say more than the clock where other programs use the machine.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.transformer_encoding import load_questions
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.index.run import run_encoder
from qpr_jax.machine import cpu_count
from qpr_jax.models.bert_shape import BertShape
from qpr_jax.reranking.cross_encoder import (
    CrossEncoder,
    cross_encoder_folder,
    from_encoder,
    read_cross_encoder,
)
from qpr_jax.training.cross_pairs import batches_by_length, lay_out_pairs
from qpr_jax.training.cross_step import make_cross_step
from qpr_jax.training.overrides import load_config, override

BATCH = 64
TOKENS = 1024  # rows of the product that the floor is measured by


def measure(run: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Median seconds by the clock, and of CPU."""
    run()
    times = []
    for _ in range(rounds):
        clock, cpu = time.perf_counter(), time.process_time()
        run()
        times.append((time.perf_counter() - clock, time.process_time() - cpu))
    return statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)


def operations(shape: BertShape, lengths: np.ndarray) -> float:
    """Operations of the layers' products to score pairs of these lengths."""
    size, inner = shape.hidden_size, shape.intermediate_size
    of_token = 2 * (4 * size**2 + 2 * size * inner)
    of_attention = 4 * size * lengths.astype(np.float64) ** 2
    return float(shape.num_hidden_layers * (of_token * lengths + of_attention).sum())


def product_rate(shape: BertShape, rounds: int) -> tuple[float, float]:
    """Operations a second of a float32 product, by the clock and of CPU."""
    left = jnp.ones((TOKENS, shape.hidden_size), jnp.float32)
    right = jnp.ones((shape.hidden_size, shape.intermediate_size), jnp.float32)
    product = jax.jit(functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST))
    repeats = 20

    def run() -> None:
        jax.block_until_ready([product(left, right) for _ in range(repeats)])

    count = 2 * repeats * TOKENS * shape.hidden_size * shape.intermediate_size
    wall, cpu = measure(run, rounds)
    return count / wall, count / cpu


def read_model(named: str) -> CrossEncoder:
    if cross_encoder_folder(named):
        return read_cross_encoder(named)
    encoder = run_encoder(named)
    assert isinstance(encoder, TransformerEncoder)
    return from_encoder(encoder, max_tokens=128, seed=0)


def train_rows(
    model: CrossEncoder, ids: list[list[int]], rows: np.ndarray, steps: np.ndarray, rounds: int
) -> Iterator[tuple[str, float, float]]:
    for dtype in ("float32", "bfloat16"):
        config = override(load_config("quora_cross_encoder"), {"encoder.compute_dtype": dtype})
        step, state = make_cross_step(config, model, 10_000)
        kept = [state]
        laid_out = [lay_out_pairs(rows[chosen], ids, model.max_tokens) for chosen in steps]
        batches = [(*batch, np.zeros(BATCH, np.float32)) for batch in laid_out]

        def run(step: Any = step, kept: Any = kept, batches: Any = batches) -> None:
            for batch in batches:
                kept[0], metrics = step(kept[0], *batch)
            jax.block_until_ready(metrics)

        yield f"train, {dtype}", *measure(run, rounds)


def main() -> int:
    given = parse()
    model = read_model(given.model)
    questions = load_questions(given.pairs + 1)
    pairs = list(itertools.pairwise(questions))
    ids, _ = model.tokenizer.id_lists(pairs)
    lengths = np.array([len(row) for row in ids])
    alone = model.tokenizer.id_lists([(question, "") for question in questions])[0]
    alone = [row[:-1][: model.max_tokens // 2] for row in alone]  # without the second marker
    rows = np.stack([np.arange(len(pairs)), 1 + np.arange(len(pairs))], axis=1)
    steps = batches_by_length(lengths, BATCH, seed=0)
    floor = product_rate(model.shape, given.rounds)
    work = operations(model.shape, lengths)
    print(f"{len(pairs):,} pairs, {lengths.mean():.1f} tokens each, {cpu_count()} of ", end="")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| | pairs/s | pairs/s of CPU | floor, of CPU | share of it |\n|---|---|---|---|---|")

    def show(name: str, wall: float, cpu: float, count: int, work: float) -> None:
        bound = count / (work / floor[1])
        values = (f"{count / wall:,.0f}", f"{count / cpu:,.0f}", f"{bound:,.0f}")
        print(f"| {name} | {' | '.join(values)} | {count / cpu / bound:.2f} |", flush=True)

    show("score", *measure(lambda: model.predict(pairs), given.rounds), len(pairs), work)
    of_steps = 3 * operations(model.shape, lengths[steps])
    for name, wall, cpu in train_rows(model, alone, rows, steps, given.rounds):
        show(name, wall, cpu, steps.size, of_steps)
    return 0


def parse() -> argparse.Namespace:
    from experiments.measuring import positive

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="minilm", help="Of a cross-encoder or an encoder.")
    parser.add_argument("--pairs", type=positive, default=1024)
    parser.add_argument("--rounds", type=positive, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    from qpr_jax.cli.program import run_program

    sys.exit(run_program(main))
