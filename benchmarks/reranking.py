"""Measure what re-ranking adds to a query, its rates, and the memory of its tables.

    python -m benchmarks.reranking RUN [--candidates 50]
    python -m benchmarks.reranking --questions 10000000

RUN has a light re-ranker. Searches with and without it take turns in one process, so that what
else the machine does slows both. The rate on one core is by the time of the thread, the others by
the clock. `--candidates` is how many hits are scored, in place of what the re-ranker was trained
for; only speeds are measured. `--questions` fills the tables with that many generated questions,
and says how much memory the process has then.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterator

import numpy as np

from experiments.measuring import positive
from qpr_jax.cli.program import run_program
from qpr_jax.data.synthetic import synthetic_pairs
from qpr_jax.index.statistics import Statistics
from qpr_jax.machine import peak_memory
from qpr_jax.reranking.light import LIGHT, LightReranker
from qpr_jax.retriever import Retriever

_BATCH = 1000  # queries
_CALL = 32  # queries that one thread scores in a call


def single_queries(retriever: Retriever, queries: list[str]) -> None:
    """Print the median of a query, without and with the second stage, and of the difference."""
    for query in queries[:20]:
        retriever.search([query], 20)
    times = np.empty((len(queries), 2))
    for i, query in enumerate(queries):
        for stage, rerank in enumerate((False, None)):
            start = time.perf_counter()
            retriever.search([query], 20, rerank=rerank)
            times[i, stage] = time.perf_counter() - start
    first, both = 1e3 * np.median(times, axis=0)
    added = 1e3 * np.median(times[:, 1] - times[:, 0])
    print(f"a query: p50 {first:.3f} ms, re-ranked {both:.3f} ms; {added:.3f} ms added")


def batches(retriever: Retriever, queries: list[str], repeats: int = 5) -> None:
    """Print the best rates of batches, without and with the second stage."""
    best = [0.0, 0.0]
    for _ in range(repeats):
        for stage, rerank in enumerate((False, None)):
            start = time.perf_counter()
            retriever.search(queries, 20, rerank=rerank)
            best[stage] = max(best[stage], len(queries) / (time.perf_counter() - start))
    print(
        f"batches of {len(queries)}: {best[0]:,.0f} queries/s, re-ranked {best[1]:,.0f} "
        f"({best[1] / best[0]:.2f} of it)"
    )


def one_core(retriever: Retriever, queries: list[str]) -> None:
    """Print the pairs that one thread scores in a second of its own time, 32 queries in a call."""
    statistics = Statistics.build(question for _, question in retriever.index)
    reranker = LightReranker(retriever.second_stages.models[LIGHT], retriever.encoder, statistics)
    hits = retriever.search(queries, reranker.candidates, rerank=False)
    spent, pairs = 0.0, 0
    for i in range(0, len(queries), _CALL):
        found = hits[i : i + _CALL]
        texts = [hit.question for some in found for hit in some]
        distances = np.array([hit.distance for some in found for hit in some], np.float32)
        starts = np.cumsum([0, *map(len, found)])
        for _ in range(1 + (i == 0)):  # the first call may compile
            start = time.thread_time()
            reranker.score(queries[i : i + _CALL], texts, distances, starts)
            last = time.thread_time() - start
        spent, pairs = spent + last, pairs + len(texts)
    print(f"one core: {pairs / spent:,.0f} pairs/s, {len(hits[0])} of a query")


def generated(count: int) -> Iterator[str]:
    """Questions, each with a number of its own, so that tables fill as those of real ones do."""
    data = synthetic_pairs(clusters=2000, seed=0)
    for i in range(count):
        yield f"{data.questions[i % len(data.questions)]} {i % 1_000_003} {i}"


def memory(count: int) -> None:
    """Print the size of the tables, by arithmetic and by filling them."""
    before = peak_memory()
    start = time.perf_counter()
    statistics = Statistics.build(generated(count))
    seconds = time.perf_counter() - start
    size = sum(table.nbytes for table in statistics.counters)
    print(
        f"tables of any number of questions: {size / 2**20:.0f} MiB; with {count:,} of them the "
        f"process has grown by {(peak_memory() - before) / 2**20:.0f} MiB, "
        f"{1e6 * seconds / count:.1f} microseconds each; "
        f"{len(statistics.to_bytes()) / 2**20:.0f} MiB on disk"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?")
    parser.add_argument("--queries", type=positive, default=_BATCH)
    parser.add_argument("--candidates", type=positive)
    parser.add_argument("--questions", type=positive, default=0)
    args = parser.parse_args()
    if args.questions:
        memory(args.questions)
    if not args.run:
        return 0
    retriever = Retriever.load(args.run)
    if args.candidates:
        models = retriever.second_stages.models
        models[LIGHT] = dataclasses.replace(models[LIGHT], candidates=args.candidates)
    # As people type them; else the index would have the very text of each query.
    questions = itertools.islice(retriever.index, args.queries)
    queries = [question.lower().rstrip(" ?") for _, question in questions]
    single_queries(retriever, queries)
    one_core(retriever, queries)
    batches(retriever, queries)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
