"""Duplicates in the Quora questions, and in tables that are hard for a comparison of all pairs.

    python -m benchmarks.duplicates [--quick] [--encoder open_student] [--distances 0.2 0.3]
        [--generated 2000000]

The first table has a row for each squared distance: the pairs within it, the share of them that the
search misses (counted on a sample of the questions, whose pairs are all found), its own estimate of
that share, and the shares of Quora's labeled duplicates and other labeled pairs within it. The
second table times `find_duplicates` from texts to groups, on the questions and on made-up tables:
equal rows, spellings of few questions, and one sentence with a number. `--generated` finds the
pairs within .2 of so many vectors near those of the questions.
"""

from __future__ import annotations

import multiprocessing
import sys
import time

import numpy as np

from benchmarks import report
from benchmarks.search import near
from qpr_jax.cli.program import run_program
from qpr_jax.data.question_pairs import QuestionPairs, read_question_pairs
from qpr_jax.duplicates.search import find_duplicates
from qpr_jax.index.close_pairs import Pairs, close_pairs, pair_distances
from qpr_jax.locations import read_encoder
from qpr_jax.running import peak_memory
from qpr_jax.training.sources import find_quora

QUICK, SAMPLED = 20_000, 10_000
GENERATED_DISTANCE = 0.2


def count_missed(vectors: np.ndarray, distance: float, found: Pairs) -> float:
    """Return the share of the pairs of some rows that was not found."""
    is_sampled = np.zeros(len(vectors), bool)
    is_sampled[np.random.default_rng(7).permutation(len(vectors))[:SAMPLED]] = True
    exact = close_pairs(vectors, distance, is_new=is_sampled, compare="new", exact=len(vectors))
    there = int((is_sampled[found.first] | is_sampled[found.second]).sum())
    return 1 - there / max(1, len(exact.pairs.first))


def close_questions(
    data: QuestionPairs, encoder: str, count: int, distances: list[float]
) -> report.Table:
    """Return the pairs within each distance."""
    vectors = read_encoder(encoder).encode(data.questions[:count])
    present = (data.pairs < count).all(axis=1)
    labeled, is_duplicate = data.pairs[present].astype(np.int64), data.is_duplicate[present]
    apart = pair_distances(vectors, *labeled.T)
    rows = []
    for distance in distances:
        start = time.perf_counter()
        found = close_pairs(vectors, distance)
        seconds = time.perf_counter() - start
        missed = 0.0 if found.exact else count_missed(vectors, distance, found.pairs)
        row = [f"{distance:g}", f"{len(found.pairs.first):,}", f"{seconds:.1f}"]
        row += [f"{missed:.4f}", f"{found.missed:.4f}"]
        within = [apart[some] <= distance for some in (is_duplicate, ~is_duplicate)]
        rows.append([*row, *(f"{some.mean():.3f}" for some in within)])
    head = ["distance", "pairs", "s", "missed", "estimate", "labeled duplicates", "other labeled"]
    return report.Table(f"Close pairs of {count:,} Quora questions by `{encoder}`", head, rows)


def generated_pairs(encoder: str, questions: list[str], count: int) -> list[str]:
    """Return a row on the pairs of generated vectors; runs in a process for its peak memory."""
    vectors = np.concatenate([*near(read_encoder(encoder).encode(questions), count)])
    start = time.perf_counter()
    found = close_pairs(vectors, GENERATED_DISTANCE)
    seconds = time.perf_counter() - start
    cells = [f"{count:,}", f"{len(found.pairs.first):,}", f"{seconds:.0f}", f"{found.missed:.4f}"]
    return [*cells, f"{peak_memory() / 2**30:.1f}"]


def spelled(count: int) -> list[str]:
    """Return spellings of 30 questions: upper and lower case, spaces and punctuation."""
    words = ["how", "do", "i", "change", "the", "delivery", "address", "of", "order"]
    texts = []
    for number in range(count):
        bits = number // 30
        spelling = [w.upper() if bits >> i & 1 else w for i, w in enumerate(words)]
        texts.append(
            f"{' '.join(spelling)} {chr(97 + number % 30 % 26)}{number % 30}{'?' * (bits % 3)}"
        )
    return texts


def time_search(encoder: str, texts: list[str]) -> list[str]:
    """Return seconds, peak memory, pairs and groups; runs in a process for its peak memory."""
    find_duplicates(["a", "b"], encoder=encoder, max_distance=0.3)  # loads what is compiled
    start = time.perf_counter()
    found = find_duplicates(texts, encoder=encoder, max_distance=0.3)
    seconds = time.perf_counter() - start
    sizes = [len(group.ids) for group in found.groups]
    cells = [f"{seconds:.1f}", f"{peak_memory() / 2**30:.2f}", f"{len(found.pairs):,}"]
    return [*cells, f"{len(sizes):,}", f"{max(sizes, default=0):,}"]


def whole_searches(encoder: str, questions: list[str]) -> report.Table:
    """Return the time of searches from texts to groups."""
    tables = {
        "Quora questions": questions,
        "equal rows": ["How do I reset my password?"] * 20_000,
        "spellings of 30 questions": spelled(3_000),
        "one sentence with a number": [f"Where is my order number {i}?" for i in range(10_000)],
    }
    rows = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name, texts in tables.items():
            cells = pool.apply(time_search, (encoder, texts))
            rows.append([name, f"{len(texts):,}", *cells])
    head = ["table", "rows", "s", "peak GiB", "pairs", "groups", "largest"]
    return report.Table("`find_duplicates` within .3", head, rows)


def main() -> int:
    """Measure."""
    parser = report.parser(__doc__)
    parser.add_argument("--encoder", default="open_student", help="encoder")
    parser.add_argument("--distances", type=float, nargs="+", default=[0.1, 0.2, 0.3])
    parser.add_argument("--generated", type=int, nargs="*", default=[], metavar="COUNT")
    options = parser.parse_args()
    data = read_question_pairs(find_quora())
    count = QUICK if options.quick else len(data.questions)
    tables = [
        close_questions(data, options.encoder, count, options.distances),
        whole_searches(options.encoder, data.questions[:count]),
    ]
    if options.generated:
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            of = [(options.encoder, data.questions[:count], size) for size in options.generated]
            rows = pool.starmap(generated_pairs, of, chunksize=1)
        head = ["vectors", "pairs", "s", "estimated share missed", "peak GiB"]
        title = f"Generated vectors, pairs within {GENERATED_DISTANCE:g}"
        tables.append(report.Table(title, head, rows))
    report.finish("duplicates", options, tables)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
