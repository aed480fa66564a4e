"""What a run finds up to a squared distance: a table to choose `--max-distance` by.

    python -m benchmarks.max_distance open_student [--path FILE]

For each threshold it prints the share of Quora's positive pairs (labeled as duplicates) and of its
negative pairs within that distance; the negative pairs are hard negatives. Then it finds all pairs
among all questions, and prints their number and the share in one cluster of the labels. The
precision is higher than this share, since most duplicates are unlabeled.
"""

from __future__ import annotations

import argparse
import tempfile

import numpy as np

from experiments.tables import table_lines
from qpr_jax.data.clusters import transitive_clusters
from qpr_jax.data.quora import read_quora
from qpr_jax.data.sources import find_quora
from qpr_jax.index.mining import pair_distances
from qpr_jax.index.pair_files import join_pairs
from qpr_jax.index.pair_search import find_pairs
from qpr_jax.retriever import run_encoder
from qpr_jax.training.pair_calibration import same_cluster

_MEMORY = 4 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="A run or a model.")
    parser.add_argument("--path", default="", help="The pair file, as of training.")
    parser.add_argument(
        "--distances", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8]
    )
    given = parser.parse_args()
    data = read_quora(find_quora(given.path))
    vectors = run_encoder(given.run).encode(data.questions)
    labeled = pair_distances(vectors, *data.pairs.T)
    linked = data.pairs[data.is_duplicate].astype(np.int64)
    clusters = transitive_clusters(len(data.questions), linked)
    with tempfile.TemporaryDirectory() as folder:
        found = find_pairs(vectors, max(given.distances), folder, memory=_MEMORY)
        pairs = join_pairs([*found.parts()])
    true = same_cluster(clusters, pairs)
    rows = []
    for distance in given.distances:
        near = labeled <= distance
        shares = (near[data.is_duplicate].mean(), near[~data.is_duplicate].mean())
        among = pairs.distances <= distance
        cells = [f"{among.sum():,}", f"{true[among].mean():.2f}" if among.any() else ""]
        rows.append([f"{distance:g}", *(f"{share:.3f}" for share in shares), *cells])
    print(f"{len(data.questions):,} questions, {len(data.pairs):,} labeled pairs\n")
    head = ["distance", "of duplicates", "of the others", "pairs among all", "in one cluster"]
    print("\n".join(table_lines(head, rows)))


if __name__ == "__main__":
    main()
