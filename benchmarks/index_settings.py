"""Time, memory and scores of index recipes (lists, probes, assignments), on a Quora run.

    python -m benchmarks.index_settings --run=runs/quora_sdml

Scores are over distinct queries; recall@10 is against exact search; MiB is what FAISS stores.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from experiments.configs import quora_sdml
from qpr_jax.data.sources import find_quora
from qpr_jax.encoders.cnn_encoder import read_cnn
from qpr_jax.evaluation.retrieval import (
    exact_search,
    index_recall,
    index_search,
    rank,
    retrieval_scores,
)
from qpr_jax.index.question_index import build_index
from qpr_jax.index.recipe import Recipe
from qpr_jax.training.dataset import load_dataset

SETTINGS = (
    ("IVF2000,Flat", 1),
    ("IVF2000,Flat", 2),
    ("IVF2000,Flat", 3),
    ("IVF2000,Flat", 4),
    ("IVF2000,SQfp16", 3),
    ("IVF2000,SQ8", 1),
    ("IVF2000,SQ8", 3),
    ("IVF640,Flat", 1),
    ("IVF640,Flat", 3),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="runs/quora_sdml")
    run = parser.parse_args().run

    dataset = load_dataset(quora_sdml.get_config(), find_quora())
    encoder = read_cnn(f"{run}/export")
    vectors = encoder.encode(dataset.data.questions)
    position = {question: i for i, question in enumerate(dataset.data.questions)}
    splits = {name: dataset.splits.pairs[name] for name in ("validation", "test")}
    queries = {name: np.unique(pairs[:, 0]) for name, pairs in splits.items()}

    def scores(search, name):
        found = rank(search, queries[name])
        both = retrieval_scores(found, queries[name], splits[name], dataset.clusters)
        columns = [
            both[over][m] for over in ("per_pair", "per_query") for m in ("hits@1", "mrr@20")
        ]
        return found, " | ".join(f"{value:.4f}" for value in columns)

    print(
        "| index | assignments | MiB | ms a query, in batches | recall@10 "
        "| validation: pairs H@1 | MRR | queries H@1 | MRR "
        "| test: pairs H@1 | MRR | queries H@1 | MRR |"
    )
    print("|---" * 13 + "|")
    exact = {name: scores(exact_search(vectors), name) for name in splits}
    print(f"| exact | | | | 1 | {' | '.join(row for _, row in exact.values())} |")
    for factory, assignments in SETTINGS:
        index = build_index(
            lambda questions: vectors[[position[q] for q in questions]],
            dataset.data.questions,
            recipe=Recipe(factory, assignments=assignments),
            encoder=encoder.identity,
            log=lambda line: None,
        )
        start = time.perf_counter()
        found = {name: scores(index_search(index, vectors), name) for name in splits}
        per_query = (time.perf_counter() - start) * 1e3 / sum(map(len, queries.values()))
        recall = np.mean([index_recall(found[name][0], exact[name][0]) for name in splits])
        stored = index.vectors.whole.ntotal * (index.vectors.whole.code_size + 8) / 2**20
        facts = f"{factory} | {assignments} | {stored:.0f} | {per_query:.2f} | {recall:.3f}"
        print(f"| {facts} | {' | '.join(row for _, row in found.values())} |", flush=True)


if __name__ == "__main__":
    main()
