"""Questions to vectors and to hits: how many a second, and how long one takes.

    python -m benchmarks.encoding --runs runs/quora_sdml runs/quora_best
    python -m benchmarks.encoding --runs runs/quora_distilled --against minilm

All questions of the first run's index, from strings and from word ids, on all cores; one question
at a time; one question from text to 20 hits, and all test questions at once; for each run in turns.
Beside them, where it is installed (`pip install torch 'sentence-transformers>=6'`),
sentence-transformers' own WordEmbeddings, CNN, max pooling and Dense of the first run's sizes. With
`--against` only strings to vectors: the runs and, in turns, a transformer on 2,000 questions.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import pathlib
import sys
import time
from collections.abc import Callable

import numpy as np

from experiments.measuring import rates_in_turns
from qpr_jax.cli.program import run_program
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.load import Encoder
from qpr_jax.retriever import Retriever, run_encoder

ROUNDS, SINGLE, K = 5, 2000, 20


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def one_by_one(call: Callable[[list[str]], object], questions: list[str]) -> np.ndarray:
    """Milliseconds of each question alone."""
    return 1e3 * np.array([seconds(functools.partial(call, [q])) for q in questions])


def sentence_transformer(encoder: CnnEncoder) -> Callable[[list[str]], object] | None:
    """The same layers made of sentence-transformers' modules, with random weights."""
    if importlib.util.find_spec("sentence_transformers") is None:
        return None
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    words = ("", *encoder.vocabulary.words)  # the first is padding
    tokenizer = modules.tokenizer.WhitespaceTokenizer(words, stop_words=(), do_lower_case=True)
    filters = sum(len(bias) for bias in encoder.biases)
    width = encoder.embedding.shape[1]
    windows = [len(kernel) for kernel in encoder.kernels]
    model = SentenceTransformer(
        modules=[
            modules.WordEmbeddings(tokenizer, encoder.embedding[: len(words)]),
            modules.CNN(width, len(encoder.biases[0]), windows),
            modules.Pooling(filters, pooling_mode="max"),
            modules.Dense(filters, encoder.dimension, bias=False, activation_function=None),
        ],
        device="cpu",
    )
    return lambda questions: model.encode(questions, batch_size=256, show_progress_bar=False)


def compare(encoders: dict[str, tuple[Encoder, list[str]]]) -> None:
    """Print questions a second from strings to vectors, in turns, and as multiples of the last."""
    medians = rates_in_turns(encoders, ROUNDS)
    *_, last = medians.values()
    print("| encoder | questions/s from strings | times the last's |\n|---|---|---|")
    for name, rate in medians.items():
        print(f"| {name} | {rate:,.0f} | {rate / last:.1f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", type=pathlib.Path, required=True)
    parser.add_argument("--against", default="", help="a run or folder with a transformer")
    arguments = parser.parse_args()
    runs = arguments.runs
    retrievers = {run: Retriever.load(run) for run in runs}
    first = retrievers[runs[0]]
    questions = [question for _, question in first.index]
    some = questions[:: len(questions) // SINGLE][:SINGLE]
    print(f"{len(questions):,} questions, {os.cpu_count()} cores, median of {ROUNDS} rounds\n")
    if arguments.against:
        encoders = {str(run): (r.encoder, questions) for run, r in retrievers.items()}
        compare(encoders | {arguments.against: (run_encoder(arguments.against), some)})
        return 0
    rates: dict[str, list[tuple[float, float]]] = {}
    for _ in range(ROUNDS):
        for run, retriever in retrievers.items():
            encoder = retriever.encoder
            words, _ = encoder.vocabulary.word_ids(questions, encoder.max_words)
            lap = (
                seconds(lambda encoder=encoder: encoder.encode(questions)),
                seconds(lambda encoder=encoder, words=words: encoder.encode_words(words)),
            )
            rates.setdefault(str(run), []).append(lap)
    print("| run | MiB of tables | questions/s from strings | from word ids | times the first's |")
    print("|---|---|---|---|---|")
    plain = None
    for run, retriever in retrievers.items():
        strings, ids = np.median(rates[str(run)], axis=0)
        plain = plain or ids
        tables = sum(table.nbytes for table in retriever.encoder._tables.tables) / 2**20
        print(
            f"| {run} | {tables:.0f} | {len(questions) / strings:,.0f} "
            f"| {len(questions) / ids:,.0f} | {ids / plain:.2f} |"
        )
    if theirs := sentence_transformer(first.encoder):
        fewer = questions[: len(questions) // 8]
        theirs(fewer[:1000])
        took = float(np.median([seconds(lambda: theirs(fewer)) for _ in range(3)]))
        print(f"| sentence-transformers' CNN | | {len(fewer) / took:,.0f} | | |")
    print("\n| run | a question encoded: p50, p99 ms | found: p50, p99 ms | in a batch, a second |")
    print("|---|---|---|---|")
    for run, retriever in retrievers.items():
        cells = []
        for call in (retriever.encode, functools.partial(retriever.search, k=K)):
            one_by_one(call, some[:50])
            median, slow = np.percentile(one_by_one(call, some), [50, 99])
            cells.append(f"{median:.3f}, {slow:.3f}")
        took = np.median([seconds(lambda r=retriever: r.search(some, K)) for _ in range(3)])
        print(f"| {run} | {' | '.join(cells)} | {len(some) / took:,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
