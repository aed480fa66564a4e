"""Duplicates among the Quora questions, or among more that are made of them.

    python -m benchmarks.duplicates [--run open_student] [--questions 165493] [--distances 0.2 0.3]

Prints a row for each squared distance: the pairs within it, the seconds from vectors to pairs, the
share of the pairs that is missed, its estimate, the share of Quora's labeled duplicates and of the
other labeled pairs within the distance, and the share of the pairs found whose questions are in one
cluster of the labels. Most duplicates have no label, so the precision is higher than that.

Then it times `find_duplicates` at --group-distance, from texts to groups, and prints the pairwise
precision and recall of the groups of each linkage by the clusters.

What is missed is counted on --sampled questions, whose pairs with all others are found exactly.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np

from qpr_jax.data.clusters import transitive_clusters
from qpr_jax.data.pairs import QuestionPairs, read_question_pairs
from qpr_jax.data.sources import find_quora
from qpr_jax.duplicates.find import find_duplicates
from qpr_jax.duplicates.groups import LINKAGES
from qpr_jax.index.close_pairs import Pairs, close_pairs
from qpr_jax.index.exact import pair_distances
from qpr_jax.index.run import run_encoder
from qpr_jax.machine import peak_memory

_PART = 65_536
QUICK = 20_000


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", default="open_student", help="Encoder.")
    parser.add_argument("--questions", type=int, default=0, help="0: all of Quora's.")
    parser.add_argument("--distances", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.5])
    parser.add_argument("--group-distance", type=float, default=0.3)
    parser.add_argument("--sampled", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    data = read_question_pairs(find_quora(""))
    count = QUICK if given.quick else given.questions or len(data.questions)
    texts = [*distinct_questions(data.questions, count)]
    encoder = run_encoder(given.run)
    start = time.perf_counter()
    vectors = np.empty((count, encoder.dimension), np.float32)
    for first in range(0, count, _PART):
        vectors[first : first + _PART] = encoder.encode(texts[first : first + _PART])
    print(f"{count:,} questions, {given.run}; encoded in {time.perf_counter() - start:.0f} s\n")
    print_distances(data, vectors, given.distances, given.sampled)
    print_groups(data, texts, given.run, given.group_distance)
    print(f"peak memory: {peak_memory() / 2**30:.1f} GiB")


def distinct_questions(questions: list[str], count: int) -> Iterator[str]:
    """Yield real questions and, beyond these, copies that end in two words of another one."""
    for number in range(count):
        copy, row = divmod(number, len(questions))
        if copy:
            other = questions[(row * 7919 + copy * 104_729) % len(questions)].split()[:2]
            yield f"{questions[row]} {' '.join(other)} {copy}"
        else:
            yield questions[row]


def print_distances(
    data: QuestionPairs, vectors: np.ndarray, distances: list[float], sampled: int
) -> None:
    """The pairs within each distance, and which of the labeled pairs are."""
    rows = min(len(vectors), len(data.questions))
    clusters = clusters_of(data, len(vectors))
    known = (data.pairs < rows).all(axis=1)
    labeled, is_duplicate = data.pairs[known].astype(np.int64), data.is_duplicate[known]
    apart = pair_distances(vectors, *labeled.T)
    print("| distance | pairs | s | missed | estimate | duplicates | others | in one cluster |")
    print("|---|---|---|---|---|---|---|---|")
    for distance in distances:
        start = time.perf_counter()
        found = close_pairs(vectors, distance)
        seconds = time.perf_counter() - start
        missed = count_missed(vectors, distance, found.pairs, sampled) if not found.exact else 0.0
        own = clusters[found.pairs.first]
        same = (own >= 0) & (own == clusters[found.pairs.second])
        cells = [f"{distance:g}", f"{len(same):,}", f"{seconds:.1f}"]
        cells += [f"{missed:.4f}", f"{found.missed:.4f}"]
        cells += [
            f"{(apart[mask] <= distance).mean():.3f}" for mask in (is_duplicate, ~is_duplicate)
        ]
        cells.append(f"{same.mean():.2f}" if len(same) else "")
        print(f"| {' | '.join(cells)} |", flush=True)
    print()


def count_missed(vectors: np.ndarray, distance: float, found: Pairs, sampled: int) -> float:
    """The share of the pairs of some rows that was not found."""
    is_sampled = np.zeros(len(vectors), bool)
    is_sampled[np.random.default_rng(7).permutation(len(vectors))[:sampled]] = True
    how = {"is_new": is_sampled, "compare": "new", "exact": len(vectors)}
    exact = close_pairs(vectors, distance, **how)  # type: ignore[arg-type]
    there = int((is_sampled[found.first] | is_sampled[found.second]).sum())
    return 1 - there / max(1, len(exact.pairs.first))


def print_groups(data: QuestionPairs, texts: list[str], run: str, distance: float) -> None:
    """The time of a whole search, and its groups by each linkage."""
    clusters = clusters_of(data, len(texts))
    print("| linkage | s | pairs | groups | largest | precision | recall |")
    print("|---|---|---|---|---|---|---|")
    for linkage in LINKAGES:
        start = time.perf_counter()
        found = find_duplicates(texts, run=run, max_distance=distance, groups=linkage)
        seconds = time.perf_counter() - start
        groups = [np.array(group.ids) for group in found.groups]
        joined = right = 0
        for group in groups:
            own = clusters[group]
            joined += len(group) * (len(group) - 1) // 2
            right += sum(n * (n - 1) // 2 for n in np.bincount(own[own >= 0]).tolist())
        true = sum(n * (n - 1) // 2 for n in np.bincount(clusters[clusters >= 0]).tolist())
        largest = max(map(len, groups), default=0)
        cells = [linkage, f"{seconds:.1f}", f"{len(found.pairs):,}", f"{len(groups):,}"]
        cells += [f"{largest:,}", f"{right / max(1, joined):.3f}", f"{right / max(1, true):.3f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    print()


def clusters_of(data: QuestionPairs, count: int) -> np.ndarray:
    """The cluster of each of `count` questions by Quora's labels, -1 for none: int64 [count]."""
    linked = data.pairs[data.is_duplicate].astype(np.int64)
    clusters = transitive_clusters(len(data.questions), linked).astype(np.int64)[:count]
    return np.append(clusters, np.full(count - len(clusters), -1))


if __name__ == "__main__":
    main()
