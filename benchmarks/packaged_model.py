"""The encoder that the package carries: scores on the Quora pairs, and the time of an index.

    python -m benchmarks.packaged_model [--run open_student] [--path FILE]

It has not seen the Quora pairs. Prints H@1 and MRR per query of the test split of the `quora_*`
configs, by exact search among all questions, with and without its re-ranker, and what `qpr index`
takes for a CSV of 100,000 of the questions. BM25 stands in results/distillation/README.md.
"""

from __future__ import annotations

import argparse
import csv
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

from qpr_jax import Retriever
from qpr_jax.data.sources import find_quora
from qpr_jax.encoders.packaged import NAME
from qpr_jax.evaluation.retrieval import exact_search, rank, retrieval_scores
from qpr_jax.index.recipe import Recipe
from qpr_jax.training.candidates import Finder
from qpr_jax.training.config import load_config
from qpr_jax.training.dataset import TrainDataset, load_dataset
from qpr_jax.training.reranker import TrainedReranker

ROWS = 100_000


def score(run: str, dataset: TrainDataset) -> None:
    """Print the scores of test queries, a row for each search."""
    questions = dataset.data.questions
    retriever = Retriever.build(questions, run=run, recipe=Recipe("Flat"))
    vectors = retriever.encode(questions)
    searches = {"one stage": exact_search(vectors)}
    if model := retriever.stages.light:
        finder = Finder(
            *(retriever.encoder, questions, vectors),
            candidates=model.candidates,
            frequencies=model.frequencies,
        )
        finder.use_weights(model.word_weights)
        none = np.full(len(questions), -1)
        trained = TrainedReranker(model, [], none, {}, finder)
        searches["two stages"] = trained.search(searches["one stage"])
    pairs = dataset.splits.pairs["test"]
    queries = np.unique(pairs[:, 0])
    print("| search | H@1 | MRR@20 |\n|---|---|---|")
    for name, search in searches.items():
        found = retrieval_scores(rank(search, queries), queries, pairs, dataset.clusters)
        per_query = found["per_query"]
        print(f"| {name} | {per_query['hits@1']:.3f} | {per_query['mrr@20']:.3f} |", flush=True)


def time_index(run: str, questions: list[str]) -> None:
    """Print the seconds of `qpr index` for the first questions as a CSV."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "questions.csv")
        with path.open("w", encoding="utf-8", newline="") as file:
            rows = ([number, text] for number, text in enumerate(questions[:ROWS]))
            csv.writer(file).writerows([["id", "question"], *rows])
        command = [sys.executable, "-m", "qpr_jax.cli.main", "index", f"{folder}/index", str(path)]
        start = time.perf_counter()
        subprocess.run([*command, "--run", run], check=True, capture_output=True)
        seconds = time.perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = usage.ru_utime + usage.ru_stime
    print(f"{ROWS:,} questions indexed in {seconds:.1f} s ({processor:.1f} s of processors)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default=NAME, help="The folder of another run or model.")
    parser.add_argument("--path", default="", help="The pair file, as of training.")
    arguments = parser.parse_args()
    dataset = load_dataset(load_config("quora_sdml"), find_quora(arguments.path))
    score(arguments.run, dataset)
    time_index(arguments.run, dataset.data.questions)


if __name__ == "__main__":
    main()
