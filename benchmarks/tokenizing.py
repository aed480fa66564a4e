"""Questions a second from strings to token ids, compiled and in plain Python.

    python -m benchmarks.tokenizing --questions $QPR_DATA_DIR/quora/quora_duplicate_questions.tsv

Measures, for a vocabulary of the words of every second question with each treatment of unknown
words, in turns: all questions in chunks of 512, as an encoder reads them, by one thread and by two;
the seconds of the processor that one thread takes, which other programs change less; and one
question at a time. Plain Python is the tests' reference, but with one pass of a regular expression
over the lower-case lines of a chunk.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import pathlib
import re
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from qpr_jax.cli.program import run_program
from qpr_jax.data.quora import read_quora
from qpr_jax.text.tokenizer import as_lines
from qpr_jax.text.vocabulary import build_vocabulary
from tests.text.plain_ids import PlainIds

CHUNK = 512
KINDS = {"one bin": {}, "subwords": {"subwords": True}, "char_ngrams=3": {"char_ngrams": 3}}
WORD_OR_END = re.compile(r"[^\x00-/:-@\[-^`{-\x7f]+|\n")


def words_of(texts: Sequence[str]) -> list[str]:
    """All words of texts, with a newline after each text."""
    return WORD_OR_END.findall(as_lines(texts).decode().lower())


def seconds(
    read: Callable[[list[str]], object], questions: list[str], threads: int
) -> tuple[float, float]:
    """Time of all questions, and of the processor for this thread."""

    def read_chunk(start: int) -> None:
        read(questions[start : start + CHUNK])

    start, of_thread = time.perf_counter(), time.thread_time()
    starts = range(0, len(questions), CHUNK)
    if threads == 1:
        for at in starts:
            read_chunk(at)
    else:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(read_chunk, starts):
                pass
    return time.perf_counter() - start, time.thread_time() - of_thread


def latency(read: Callable[[list[str]], object], questions: list[str]) -> float:
    """Median microseconds of a question by itself."""
    return 1e6 * float(np.median([seconds(read, [q], 1)[0] for q in questions]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=pathlib.Path, required=True, help="Quora's file")
    parser.add_argument("--max-rows", type=int, help="read only the first rows")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    questions = [*read_quora(arguments.questions, max_rows=arguments.max_rows).questions]
    print(
        f"{len(questions):,} questions, median of {arguments.rounds} rounds; thousands a second\n"
    )
    print(
        "| unknown words | by | 1 thread | 1 thread, processor | 2 threads | one question: p50 µs |"
    )
    print("|---|---|---|---|---|---|")
    for kind, settings in KINDS.items():
        vocabulary = build_vocabulary(questions[::2], min_count=2, **settings)
        plain = functools.partial(PlainIds(vocabulary).flat_ids, split=words_of)
        ways = {"plain Python": plain, "compiled": vocabulary.flat_ids}
        figures: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
        for number in range(1 + arguments.rounds):
            for name, read in ways.items():
                one, two = (seconds(read, questions, threads) for threads in (1, 2))
                if number:  # the first round compiles
                    rates = (len(questions) / 1e3 / s for s in (*one, two[0]))
                    figures[name].append((*rates, latency(read, questions[::50])))
        for name, rows in figures.items():
            cells = " | ".join(f"{figure:,.0f}" for figure in np.median(rows, axis=0))
            print(f"| {kind} | {name} | {cells} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
