"""What word overlap alone reaches on the pair file: BM25 and TF-IDF, by our split and evaluator.

    python -m benchmarks.lexical_baselines [--path FILE]

Needs the extra `lexical`; takes about a minute on 2 cores. H@1 and MRR, per pair and per query.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np

from qpr_jax.data.clusters import transitive_clusters
from qpr_jax.data.quora import read_quora
from qpr_jax.data.sources import find_quora
from qpr_jax.data.splits import split_by_cluster
from qpr_jax.retrieval.evaluate import Search, rank, retrieval_scores
from qpr_jax.retrieval.lexical import bm25_search, tfidf_search

BASELINES: dict[str, Callable[[Sequence[str]], Search]] = {
    "BM25 (k1 0.9, b 0.4)": bm25_search,
    "TF-IDF, cosine": tfidf_search,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--path", default="", help="the pair file; found as by the main job if empty"
    )
    data = read_quora(find_quora(parser.parse_args().path))
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    splits = split_by_cluster(data, clusters)
    print("| | split | per pair: H@1 / MRR | per query: H@1 / MRR | seconds |")
    print("|---|---|---|---|---|")
    for name, make_search in BASELINES.items():
        search = make_search(data.questions)
        for split in ("validation", "test"):
            start = time.perf_counter()
            pairs = splits.pairs[split]
            queries = np.unique(pairs[:, 0])
            scores = retrieval_scores(rank(search, queries), queries, pairs, clusters)
            seconds = time.perf_counter() - start
            cells = [
                f"{scores[mean]['hits@1']:.3f} / {scores[mean]['mrr@20']:.3f}"
                for mean in ("per_pair", "per_query")
            ]
            print(f"| {name} | {split} | {cells[0]} | {cells[1]} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
