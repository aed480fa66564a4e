"""Compare the linkages of duplicates on Quora's questions, and write results/duplicates/README.md.

    python -m benchmarks.duplicate_groups RUN [--out results/duplicates/README.md]

It prints the page, too. The closest pairs of all questions are grouped by each linkage at several
distances. The groups of the validation questions are scored by their clusters: pairwise, and by
B-cubed. Clusters are closures of labeled duplicates, so a third score is the share of the pairs
labeled non-duplicates, of validation questions, that a group joins. RUN was trained on Quora's
pairs.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from typing import NamedTuple

import numpy as np

from qpr_jax.cli.program import run_program
from qpr_jax.data.clusters import transitive_clusters
from qpr_jax.data.quora import QuestionPairs, read_quora
from qpr_jax.data.splits import read_split
from qpr_jax.duplicates.groups import DEFAULT, SHARES, Links, group_pairs
from qpr_jax.duplicates.linkage import join_by_share
from qpr_jax.encoders.base import encode_in_parts
from qpr_jax.files import write_atomically
from qpr_jax.index.mining import Pairs, closest_pairs
from qpr_jax.index.run import run_encoder

_PAIRS = 400_000
_COUNTS = (25_000, 50_000, 100_000, 150_000, 200_000, 300_000, 400_000)  # of closest pairs
_TRIED = (0.1, 0.25, 0.5)  # shares of the linkage that cuts bridges


class Scores(NamedTuple):
    """Of the groups of validation questions by their clusters, and of what is labeled."""

    groups: int
    largest: int
    precision: float
    recall: float
    f1: float
    b_cubed: float
    joined: float  # share of the labeled non-duplicates


def main() -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run")
    parser.add_argument("--out", default="results/duplicates/README.md")
    flags = parser.parse_args()
    folder = pathlib.Path(os.environ["QPR_DATA_DIR"], "quora")
    data = read_quora(folder / "quora_duplicate_questions.tsv")
    encoder = run_encoder(flags.run)
    vectors = encode_in_parts(
        encoder.encode, lambda p: data.questions[p], len(data.questions), encoder.dimension
    )
    pairs = closest_pairs(vectors, _PAIRS)
    held_out = np.isin(data.ids, read_split(flags.run, "validation"))
    rows = [
        (name, count, score(data, held_out, pairs, count, share, name))
        for count in _COUNTS
        for name, share in linkages()
    ]
    page = write_page(rows, pairs, int(held_out.sum()))
    with write_atomically(flags.out, "w") as file:
        file.write(page)
    sys.stdout.write(page)
    return 0


def linkages() -> list[tuple[str, float]]:
    """The names and the shares that are compared."""
    cut = [(f"bridges, {share:g}", share) for share in _TRIED]
    return [("closure", 0.0), *cut, ("complete", 1.0)]


def score(
    data: QuestionPairs, held_out: np.ndarray, pairs: Pairs, count: int, share: float, name: str
) -> Scores:
    """Group the `count` closest pairs, and score the groups of held-out questions, bool [Q]."""
    links = Links(pairs.first[:count], pairs.second[:count], -pairs.distances[:count].astype(float))
    labels = labels_of(len(data.questions), links, share)
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    alone = labels < 0
    labels[alone] = labels.max(initial=-1) + 1 + np.arange(int(alone.sum()))
    clusters = clusters.astype(np.int64)
    single = clusters < 0
    clusters[single] = clusters.max(initial=-1) + 1 + np.arange(int(single.sum()))
    both = np.unique(np.stack([labels, clusters]), axis=1, return_inverse=True)[1].reshape(-1)
    group, cluster, common = (np.bincount(v)[v][held_out] for v in (labels, clusters, both))
    found, true = (group - 1).sum(), (cluster - 1).sum()
    right = (common - 1).sum()
    precision, recall = right / max(1, found), right / true
    mean_precision, mean_recall = (common / group).mean(), (common / cluster).mean()
    other = data.pairs[~data.is_duplicate]
    other = other[held_out[other].all(axis=1)]
    sizes = np.bincount(labels)
    return Scores(
        int((sizes > 1).sum()),
        int(sizes.max()),
        float(precision),
        float(recall),
        float(2 * right / (found + true)),
        float(2 * mean_precision * mean_recall / (mean_precision + mean_recall)),
        float((labels[other[:, 0]] == labels[other[:, 1]]).mean()),
    )


def labels_of(count: int, links: Links, share: float) -> np.ndarray:
    """The group of each of `count` questions, -1 for none: int64 [count]."""
    named = next((name for name, value in SHARES.items() if value == share), None)
    if named:
        return group_pairs(count, lambda: [links], named, memory=1 << 33).labels
    order = np.lexsort((links.second, links.first, -links.strength))
    first, second = links.first[order], links.second[order]
    joins = join_by_share(count, first, second, share)
    duplicates = np.stack([first[joins], second[joins]], axis=1)
    return transitive_clusters(count, duplicates).astype(np.int64)


def write_page(rows: list[tuple[str, int, Scores]], pairs: Pairs, held_out: int) -> str:
    """The page: a line for each linkage at each number of pairs, then the best of each."""
    names = ["linkage", "pairs", "distance", "groups", "largest", "precision", "recall", "F1"]
    head = f"| {' | '.join([*names, 'B-cubed F1', 'non-duplicates joined'])} |"
    lines = [
        "# Groups of duplicates: three linkages",
        "",
        f"Quora's 165,493 questions, {held_out:,} of them for validation; closest pairs of all",
        "by a trained encoder. `python -m benchmarks.duplicate_groups RUN` writes this page.",
        "",
        "## The best F1 of each linkage",
        "",
        head,
        "|" + "---|" * 10,
    ]
    best = [max((r for r in rows if r[0] == n), key=lambda r: r[2].f1) for n, _ in linkages()]
    lines += [as_line(row, pairs) for row in best]
    lines += ["", "## All", "", head, "|" + "---|" * 10]
    lines += [as_line(row, pairs) for row in rows]
    lines += ["", f"The default is {DEFAULT} linkage; [why](../../docs/duplicates.md#groups).", ""]
    return "\n".join(lines)


def as_line(row: tuple[str, int, Scores], pairs: Pairs) -> str:
    """A row of the table."""
    name, count, s = row
    shares = (s.precision, s.recall, s.f1, s.b_cubed, s.joined)
    cells = [name, f"{count:,}", f"{pairs.distances[count - 1]:.3g}", f"{s.groups:,}"]
    cells += [f"{s.largest:,}", *(f"{value:.3f}" for value in shares)]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(run_program(main))
