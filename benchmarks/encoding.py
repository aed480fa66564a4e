"""Throughput and latency of encoding and search.

    python -m benchmarks.encoding --runs runs/quora_sdml runs/quora_best
    python -m benchmarks.encoding --runs runs/quora_distilled --against minilm

Measures, for each run in turns: all questions of the first run's index, from strings and from token
ids, on all cores; one question at a time; one question from text to 20 hits, and 2,000 questions in
one batch. If it is installed (`pip install torch
'sentence-transformers>=6'`), also the WordEmbeddings, CNN, max pooling and Dense of
sentence-transformers with the sizes of the first run.
With `--against`, measures only strings to vectors: the runs and, in turns, transformers, or
encoders of `benchmarks.public_encoders`, on 2,000 questions (wordllama on 20,000).
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import pathlib
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.measuring import rates_in_turns
from benchmarks.public_encoders import PUBLIC
from qpr_jax.cli.program import run_program
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.machine import cpu_count
from qpr_jax.retriever import Retriever, run_encoder

ROUNDS, SINGLE, FAST, K = 5, 2000, 20_000, 20


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def latencies(call: Callable[[list[str]], object], questions: list[str]) -> np.ndarray:
    """Milliseconds of each question by itself."""
    return 1e3 * np.array([seconds(functools.partial(call, [q])) for q in questions])


def sentence_transformer(encoder: CnnEncoder) -> Callable[[list[str]], object] | None:
    """The same layers as modules of sentence-transformers, with random weights."""
    if importlib.util.find_spec("sentence_transformers") is None:
        return None
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    words = ("", *encoder.vocabulary.words)  # "" is padding
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


def print_rates(encoders: dict[str, tuple[Encoder, list[str]]]) -> None:
    """Measure encoders in turns; print questions per second, also as multiples of the last."""
    medians = rates_in_turns(encoders, ROUNDS)
    *_, last = medians.values()
    print("| encoder | questions/s from strings | of the last |\n|---|---|---|")
    for name, rate in medians.items():
        print(f"| {name} | {rate:,.0f} | {rate / last:.1f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", type=pathlib.Path, required=True)
    parser.add_argument("--against", nargs="+", help="transformers, or names of public encoders")
    arguments = parser.parse_args()
    runs = arguments.runs
    retrievers = {str(run): Retriever.load(run) for run in runs}
    first = retrievers[str(runs[0])]
    questions = [question.text for question in first.store.questions()]
    some = questions[:: len(questions) // SINGLE][:SINGLE]
    print(f"{len(questions):,} questions, {cpu_count()} cores, median of {ROUNDS} rounds\n")
    if arguments.against:
        encoders = {run: (r.encoder, questions) for run, r in retrievers.items()}
        for name in arguments.against:
            encoder = PUBLIC[name]() if name in PUBLIC else run_encoder(name)
            encoders[name] = encoder, questions[:FAST] if name == "wordllama" else some
        print_rates(encoders)
        return 0
    rates: dict[str, list[tuple[float, float]]] = {}
    for _ in range(ROUNDS):
        for run, retriever in retrievers.items():
            encoder = retriever.encoder
            tokens = encoder.vocabulary.token_ids(questions, encoder.max_tokens)
            times = (
                seconds(lambda encoder=encoder: encoder.encode(questions)),
                seconds(lambda e=encoder, t=tokens: e.encode_ids(t.ids, t.parts)),
            )
            rates.setdefault(run, []).append(times)
    print("| run | MiB of tables | questions/s from strings | from token ids | of the first |")
    print("|---|---|---|---|---|")
    first_ids = None
    for run, retriever in retrievers.items():
        strings, ids = np.median(rates[run], axis=0)
        first_ids = first_ids or ids
        tables = sum(table.nbytes for table in retriever.encoder._tables.tables) / 2**20
        print(
            f"| {run} | {tables:.0f} | {len(questions) / strings:,.0f} "
            f"| {len(questions) / ids:,.0f} | {ids / first_ids:.2f} |"
        )
    if theirs := sentence_transformer(first.encoder):
        fewer = questions[: len(questions) // 8]
        theirs(fewer[:1000])
        time_taken = float(np.median([seconds(lambda: theirs(fewer)) for _ in range(3)]))
        print(f"| sentence-transformers' CNN | | {len(fewer) / time_taken:,.0f} | | |")
    print("\n| run | encode: p50, p99 ms | search: p50, p99 ms | searches/s in a batch |")
    print("|---|---|---|---|")
    for run, retriever in retrievers.items():
        cells = []
        for call in (retriever.encode, functools.partial(retriever.search, k=K, rerank=False)):
            latencies(call, some[:50])
            median, slow = np.percentile(latencies(call, some), [50, 99])
            cells.append(f"{median:.3f}, {slow:.3f}")
        search = functools.partial(retriever.search, some, K, rerank=False)
        time_taken = np.median([seconds(search) for _ in range(3)])
        print(f"| {run} | {' | '.join(cells)} | {len(some) / time_taken:,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
