"""How both measures of coherence depend on the size of a cluster, on real logs.

    python -m benchmarks.coherence $QPR_DATA_DIR/qa_logs

The first table shows, by size, the mean coherence of the clusters and the share that is removed.
The second shows the same for random parts of clusters of at least 100 questions, and for equally
many unrelated questions, each from another cluster. A measure that depends on the topic of a
cluster and not on its size treats a part like the whole.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from qpr_jax.cli.program import run_program
from qpr_jax.distant.logs import BadRow, Logs, bad_row_error, log_files, read_log
from qpr_jax.distant.method import (
    LEAST,
    UNDECIDED,
    distinct_questions,
    most_used,
    pairwise_coherence,
    paper_coherence,
    word_weights,
    words_of,
)
from qpr_jax.errors import UserError

SIZES = (2, 3, 5, 10, 11, 20, 50, 100)
PARTS = 500  # samples of each size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", nargs="+", help="Files or folders of logs.")
    logs = Logs(log_files(parser.parse_args().logs))
    rows = []
    for file in logs.files:
        for row in read_log(logs, file):
            if isinstance(row, BadRow):
                raise bad_row_error(file, row)
            rows.append(row)
    rows.sort()
    questions = list(distinct_questions(rows))
    uses = Counter(word for question in questions for word in words_of(question.text))
    weights = word_weights(most_used(uses), len(questions))
    clusters = defaultdict(list)
    for question in questions:
        if question.answer != UNDECIDED:
            clusters[question.answer].append(words_of(question.text))
    found = [cluster for cluster in clusters.values() if len(cluster) > 1]

    def measure(some: Sequence[list[list[str]]]) -> str:
        """Mean coherence and share removed, by the paper's measure and by ours."""
        cells = []
        for name, values in (
            ("paper", [paper_coherence(words) for words in some]),
            ("pairwise", [pairwise_coherence(words, weights) for words in some]),
        ):
            removed = np.mean([value < LEAST[name] for value in values])
            cells.append(f"{np.mean(values):.3f} | {removed:.3f}")
        return " | ".join(cells)

    head = "coherence, paper's | removed | pairwise | removed |\n" + "|---" * 6 + "|"
    print(f"| questions | clusters | {head}")
    for least, below in itertools.pairwise((*SIZES, sys.maxsize)):
        some = [cluster for cluster in found if least <= len(cluster) < below]
        if some:
            size = " to ".join(map(str, sorted({least, max(map(len, some))})))
            print(f"| {size} | {len(some):,} | {measure(some)} |")
    draws = random.Random(0)
    large = sorted(cluster for cluster in found if len(cluster) >= SIZES[-1])
    if not large:
        raise UserError(
            f"expected a cluster of {SIZES[-1]} questions or more, got none",
            remedy="give more logs",
        )
    print(f"\n| questions | of | {head}")
    for size in SIZES:
        parts = [draws.sample(draws.choice(large), size) for _ in range(PARTS)]
        print(f"| {size} | one cluster | {measure(parts)} |")
        apart = [[draws.choice(one) for one in draws.sample(found, size)] for _ in range(PARTS)]
        print(f"| {size} | as many clusters | {measure(apart)} |")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
