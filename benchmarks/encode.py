"""Questions encoded per second by encoders of the presets' sizes, on all cores.

    python -m benchmarks.encode [--quick]
    python -m benchmarks.encode --against runs/quora_distilled minilm

Weights are random, since the rate does not depend on them; `open_student` is the packaged encoder.
Questions are generated. Encoders take turns, and the median of all rounds is printed: one question
at a time, 1,000 at a time, and all at once. `--against` adds runs, names of models, and encoders of
`benchmarks.public_encoders`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.measuring import table_lines
from benchmarks.public_encoders import PUBLIC
from qpr_jax.cli.program import run_program
from qpr_jax.data.synthetic import synthetic_pairs
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.packaged import NAME
from qpr_jax.machine import cpu_count
from qpr_jax.retriever import run_encoder
from qpr_jax.text.vocabulary import Vocabulary, build_vocabulary
from qpr_jax.training.config import load_config

_SINGLE, _BATCH, _BATCHES = 500, 1000, 5
PRESETS = ("quora_sdml", "quora_distilled")


def random_encoder(preset: str, vocabulary: Vocabulary) -> CnnEncoder:
    """An encoder of the sizes of a preset, with random weights."""
    sizes, rng = load_config(preset).encoder, np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return (0.1 * rng.standard_normal(shape)).astype(np.float32)

    embedding = draw(vocabulary.size, sizes.embedding_dim)
    embedding[0] = 0
    features = len(sizes.kernel_sizes) * sizes.filters + sizes.bag_of_words * sizes.embedding_dim
    return CnnEncoder(
        embedding=embedding,
        kernels=tuple(draw(w, sizes.embedding_dim, sizes.filters) for w in sizes.kernel_sizes),
        biases=tuple(draw(sizes.filters) for _ in sizes.kernel_sizes),
        projection=draw(features, sizes.output_dim),
        vocabulary=vocabulary,
        max_tokens=64,
        settings={},
        normalize=sizes.normalize,
    )


def rate(encoder: Encoder, questions: Sequence[str], size: int) -> float:
    """Questions per second, `size` at a time."""
    start = time.perf_counter()
    for at in range(0, len(questions), size):
        encoder.encode(questions[at : at + size])
    return len(questions) / (time.perf_counter() - start)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer questions, in seconds")
    parser.add_argument("--against", nargs="+", default=[], help="runs, or names of encoders")
    given = parser.parse_args()
    count, rounds = (5_000, 3) if given.quick else (100_000, 5)
    texts = synthetic_pairs().questions
    questions = [texts[i % len(texts)] for i in range(count)]
    encoders: dict[str, Encoder] = {NAME: run_encoder(NAME)}
    for preset in PRESETS:
        subwords = load_config(preset).text.subwords
        vocabulary = build_vocabulary(texts[: len(texts) // 2], bins=5_000, subwords=subwords)
        encoders[preset] = random_encoder(preset, vocabulary)
    for name in given.against:
        encoders[name] = PUBLIC[name]() if name in PUBLIC else run_encoder(name)
    sizes = {1: _SINGLE, _BATCH: _BATCHES * _BATCH, count: count}
    rates: dict[tuple[str, int], list[float]] = {}
    for encoder in encoders.values():
        encoder.warm_up()
        rate(encoder, questions[:_BATCH], 1)
    for _ in range(rounds):
        for size, number in sizes.items():
            for name, encoder in encoders.items():
                found = rate(encoder, questions[:number], size)
                rates.setdefault((name, size), []).append(found)
    print(f"{cpu_count()} cores, {count:,} questions, median of {rounds} rounds\n")
    head = ("encoder", *(f"{size:,} at a time" for size in sizes))
    rows = [
        (name, *(f"{statistics.median(rates[name, size]):,.0f}" for size in sizes))
        for name in encoders
    ]
    print("\n".join(table_lines(head, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
