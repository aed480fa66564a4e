"""Transformer throughput from text: this package and sentence-transformers, measured alternately.

    python -m venv other && other/bin/pip install torch sentence-transformers
    [taskset -c 0] python -m benchmarks.transformer_encoding --torch-python other/bin/python

Encodes the first questions of the Quora file, or of a generated log if there is no such file, on
all cores. sentence-transformers runs in one process of its own, with its default batch size. The
rounds include neither loading nor a first encoding of all questions, in which JAX compiles. The
machine must be idle, except with `taskset -c 0` (one core): the threads of PyTorch busy-wait for
each other, so it loses several times as much as JAX when another program uses a core.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

CHILD = "--child"


def seconds(encode: Callable[[list[str]], Any], questions: list[str]) -> tuple[float, Any]:
    start = time.perf_counter()
    vectors = encode(questions)
    return time.perf_counter() - start, vectors


def child(folder: str) -> int:
    """Load a model, then encode each list of questions from stdin and report the time."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu")
    while True:
        try:
            questions = pickle.load(sys.stdin.buffer)
        except EOFError:
            return 0
        pickle.dump(seconds(model.encode, questions), sys.stdout.buffer)
        sys.stdout.buffer.flush()


def load_questions(count: int) -> list[str]:
    from qpr_jax.data.pairs import read_question_pairs
    from qpr_jax.data.sources import NAME
    from qpr_jax.data.synthetic import synthetic_pairs

    path = pathlib.Path(os.environ.get("QPR_DATA_DIR", ""), "quora", NAME)
    # Most rows have one or two questions that are new, so twice the rows suffice.
    pairs = (
        read_question_pairs(path, max_rows=2 * count)
        if path.is_file()
        else synthetic_pairs(clusters=count)
    )
    return pairs.questions[:count]


def main() -> int:
    from qpr_jax.encoders.load import encoder_folder
    from qpr_jax.encoders.transformer_encoder import read_transformer
    from qpr_jax.errors import UserError
    from qpr_jax.machine import cpu_count

    given = parse()
    folder = encoder_folder(given.model)
    encoder = read_transformer(folder)
    questions = load_questions(given.questions)
    command = [given.torch_python, "-m", "benchmarks.transformer_encoding", CHILD, str(folder)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:

        def theirs(questions: list[str]) -> tuple[float, np.ndarray]:
            try:
                pickle.dump(questions, process.stdin)
                process.stdin.flush()
                return pickle.load(process.stdout)
            except (BrokenPipeError, EOFError):
                raise UserError(f"{given.torch_python} ended; see its output above") from None

        _, expected = theirs(questions)
        first, vectors = seconds(encoder.encode, questions)
        rounds = []
        for number in range(given.rounds):
            mine, other = seconds(encoder.encode, questions)[0], theirs(questions)[0]
            rounds.append((mine, other))
            print(f"round {number}: {mine:.2f} s, theirs {other:.2f} s", file=sys.stderr)
        process.stdin.close()
    mine, other = (statistics.median(times) for times in zip(*rounds, strict=True))
    cores = f"{cpu_count()} of {os.cpu_count()} cores"
    print(f"{len(questions):,} questions, {cores}, median of {given.rounds} rounds\n")
    print("| | questions/s | s | speed-up |\n|---|---|---|---|")
    print(f"| ours | {len(questions) / mine:,.0f} | {mine:.2f} | 1.00 |")
    print(f"| sentence-transformers | {len(questions) / other:,.0f} | {other:.2f} ", end="")
    print(f"| {statistics.median(b / a for a, b in rounds):.2f} |")
    print(f"\nour first encoding, including compilation: {first:.1f} s")
    print(f"largest difference of vectors: {np.abs(vectors - expected).max():.1e}")
    return 0


def parse() -> argparse.Namespace:
    from benchmarks.measuring import positive

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="minilm", help="Its folder or name.")
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--questions", type=positive, default=2000)
    parser.add_argument("--rounds", type=positive, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        sys.exit(child(sys.argv[2]))  # this process needs sentence-transformers only
    from qpr_jax.cli.program import run_program

    sys.exit(run_program(main))
