"""Questions encoded a second, from text to vectors, on all cores.

    python -m benchmarks.encode [--quick] [--run runs/mine minilm] [--against CHECKOUT]

The packaged encoder, and encoders with random weights of the sizes of two presets, because the rate
does not depend on the weights. Questions are generated. `--against` measures `--run` with the code
of another checkout in turns with this one; both read the same runs.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import report
from qpr_jax.cli.program import run_program
from qpr_jax.data.synthetic import synthetic_pairs
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.load import PACKAGED
from qpr_jax.retriever import read_encoder
from qpr_jax.text.vocabulary import Vocabulary, frequent_words
from qpr_jax.training.config import load_config

PRESETS = ("quora_sdml", "quora_distilled")
# Reads questions from a file; for each line `first last` of its input it prints the seconds.
WORKER = """
import sys, time
from qpr_jax.retriever import Retriever
texts = open(sys.argv[2]).read().splitlines()
retriever = Retriever.build(texts[:2], run=sys.argv[1])
retriever.encode(texts[:1000])
print("ready", flush=True)
for line in sys.stdin:
    first, last = map(int, line.split())
    start = time.perf_counter()
    retriever.encode(texts[first:last])
    print(time.perf_counter() - start, flush=True)
"""


def random_encoder(preset: str, vocabulary: Vocabulary) -> CnnEncoder:
    """Return an encoder of the sizes of a preset, with random weights."""
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


def encode_all(encoder: Encoder, questions: Sequence[str], size: int) -> Callable[[], None]:
    """Return a call that encodes questions, `size` at a time."""

    def call() -> None:
        for at in range(0, len(questions), size):
            encoder.encode(questions[at : at + size])

    return call


def rates(encoders: dict[str, Encoder], questions: list[str], rounds: int) -> report.Table:
    """Return the rates of encoders, measured in turns."""
    sizes = {1: questions[:500], 1000: questions[:5000], len(questions): questions}
    cells: dict[str, list[str]] = {name: [name] for name in encoders}
    for encoder in encoders.values():
        encoder.encode(questions)  # computes the products of their tokens
    for size, some in sizes.items():
        calls = {name: encode_all(encoder, some, size) for name, encoder in encoders.items()}
        for name, seconds in report.median_seconds(calls, rounds).items():
            cells[name].append(f"{len(some) / seconds:,.0f}")
    head = ["encoder", *(f"{size:,} at a time" for size in sizes)]
    title = f"Questions a second, median of {rounds} rounds"
    return report.Table(title, head, list(cells.values()))


def versions(runs: list[str], other: pathlib.Path, path: pathlib.Path, rounds: int) -> report.Table:
    """Compare this checkout with another one, in turns."""
    rows = []
    for run in runs:
        workers = []
        for root in (other.resolve(), report.ROOT):
            name = os.path.abspath(run) if os.path.isdir(run) else run
            environment = os.environ | {"PYTHONPATH": str(root)}
            command = [sys.executable, "-c", WORKER, name, str(path)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            workers.append(subprocess.Popen(command, env=environment, cwd=root, **pipes))  # type: ignore[call-overload]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n", "a worker failed"
        seconds: list[list[float]] = [[], []]
        for number in range(rounds):
            for worker, times in zip(workers, seconds, strict=True):
                first = 1000 + 20_000 * number
                worker.stdin.write(f"{first} {first + 20_000}\n")
                worker.stdin.flush()
                times.append(float(worker.stdout.readline()))
        for worker in workers:
            worker.kill()
        ratio = statistics.median(old / new for old, new in zip(*seconds, strict=True))
        cells = (f"{20_000 / statistics.median(times):,.0f}" for times in seconds)
        rows.append([run, *cells, f"{ratio:.2f}"])
    head = ["encoder", "before, questions/s", "now", "ratio"]
    return report.Table("Against another checkout, 20,000 questions at a time", head, rows)


def parse() -> argparse.Namespace:
    """Read the flags."""
    parser = report.parser(__doc__)
    parser.add_argument("--run", nargs="+", default=[], help="also measure these encoders")
    parser.add_argument("--against", type=pathlib.Path, help="a checkout to compare with")
    return parser.parse_args()


def main() -> int:
    """Measure."""
    given = parse()
    count, rounds = (5_000, 3) if given.quick else (100_000, 5)
    texts = synthetic_pairs().questions
    questions = [texts[i % len(texts)] for i in range(count)]
    encoders: dict[str, Encoder] = {PACKAGED: read_encoder(PACKAGED)}
    for preset in PRESETS:
        subwords = load_config(preset).text.subwords
        words = frequent_words(texts[: len(texts) // 2])[:50_000]
        vocabulary = Vocabulary(tuple(words), bins=5_000, subwords=subwords)
        encoders[f"{preset}, random weights"] = random_encoder(preset, vocabulary)
    encoders |= {name: read_encoder(name) for name in given.run}
    tables = [rates(encoders, questions, rounds)]
    if given.against:
        path = pathlib.Path(os.environ.get("TMPDIR", "/tmp"), f"questions_{time.time_ns()}.txt")
        path.write_text("\n".join(texts[i % len(texts)] for i in range(1000 + 20_000 * rounds)))
        try:
            tables.append(versions(given.run or [PACKAGED], given.against, path, rounds))
        finally:
            path.unlink()
    report.finish("encode", given, tables)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
