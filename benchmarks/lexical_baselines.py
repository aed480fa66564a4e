"""Lexical baselines on the pair file: BM25 and TF-IDF with the splits and metrics of training.

    python -m benchmarks.lexical_baselines [--path FILE | --synthetic]

Prints how many questions a second get into the index, and H@1 and MRR, per pair and per query.
Needs the extra `lexical`; takes a minute on 2 cores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

from experiments.configs import quora_sdml, synthetic_sdml
from qpr_jax.data.sources import find_quora
from qpr_jax.evaluation.lexical import bm25_search, tfidf_search
from qpr_jax.evaluation.retrieval import RankFn
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.report import score_searches

BASELINES: dict[str, Callable[[Sequence[str]], RankFn]] = {
    "BM25 (k1 0.9, b 0.4)": bm25_search,
    "TF-IDF, cosine": tfidf_search,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--path", default="", help="The pair file; if empty, training's search for it applies."
    )
    parser.add_argument(
        "--synthetic", action="store_true", help="Use the generated log of synthetic_sdml."
    )
    arguments = parser.parse_args()
    config = (synthetic_sdml if arguments.synthetic else quora_sdml).get_config()
    path = None if arguments.synthetic else find_quora(arguments.path)
    dataset = load_dataset(config, path)
    searches = {}
    print("| search | questions/s into its index |\n|---|---:|")
    for name, make in BASELINES.items():
        start = time.perf_counter()
        searches[name] = make(dataset.data.questions)
        rate = len(dataset.data.questions) / (time.perf_counter() - start)
        print(f"| {name} | {rate:,.0f} |")
    print("\n| | split | per pair: H@1 / MRR | per query: H@1 / MRR |")
    print("|---|---|---|---|")
    for split, of_split in score_searches(searches, dataset)[0].items():
        for name, scores in of_split.items():
            cells = [
                f"{scores[mean]['hits@1']:.3f} / {scores[mean]['mrr@20']:.3f}"
                for mean in ("per_pair", "per_query")
            ]
            print(f"| {name} | {split} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
