"""What typos cost: Hits@1 of misspelled test questions of Quora, by exact search.

    python -m benchmarks.typos runs/quora_distilled runs/english_subwords

Each test question gets a typo in none, one or two of its words (`benchmarks.misspelling`); it is
searched among all questions, which stay as they are. The difference of the second and further runs
to the first has a 95 % interval of a bootstrap over clusters of questions.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.misspelling import misspell
from qpr_jax.encoders.base import Encoder
from qpr_jax.evaluation.retrieval import DEPTH, first_ranks
from qpr_jax.index.exact import exact_top_k
from qpr_jax.retriever import run_encoder
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config
from qpr_jax.training.sources import SOURCES

TYPOS = (0, 1, 2)  # words of a question that get one
_RESAMPLES = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="Folders of encoders.")
    runs: list[str] = parser.parse_args().runs
    questions, clusters, queries = read_test(load_config("quora_sdml"))
    hits = {run: hits_at_1(run_encoder(run), questions, clusters, queries) for run in runs}
    print("| words with a typo | " + " | ".join(runs) + " | difference |")
    print("|---" * (len(runs) + 2) + "|")
    for row, typos in enumerate(TYPOS):
        found = [hits[run][row] for run in runs]
        cells = [f"{of.mean():.4f}" for of in found]
        differences = [difference(of, found[0], clusters[queries]) for of in found[1:]]
        print(f"| {typos} | {' | '.join(cells)} | {', '.join(differences)} |", flush=True)


def read_test(config: TrainConfig) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The questions, their clusters int [Q], and the rows of the test queries."""
    source = SOURCES[config.data.source]
    path = source.find(config) if source.find else None
    if path is None:
        raise SystemExit("expected the Quora pairs; set QPR_DATA_DIR")
    data, clusters, splits = source.read(config, path)
    return data.questions, clusters, np.unique(splits.pairs["test"][:, 0])


def hits_at_1(
    encoder: Encoder, questions: list[str], clusters: np.ndarray, queries: np.ndarray
) -> np.ndarray:
    """Whether the first hit of each query is a paraphrase: bool [typos, n]."""
    vectors = encoder.encode(questions)
    rows = []
    for typos in TYPOS:
        rng = np.random.default_rng(typos)
        texts = [misspell(questions[query], rng, typos) for query in queries]
        _, found = exact_top_k(encoder.encode(texts), vectors, DEPTH + 1)
        others = [row[row != query][:DEPTH] for row, query in zip(found, queries, strict=True)]
        rows.append(first_ranks(np.stack(others), queries, clusters) == 1)
    return np.stack(rows)


def difference(hits: np.ndarray, others: np.ndarray, clusters: np.ndarray) -> str:
    """The mean difference of hits and its 95 % interval, by clusters."""
    _, number = np.unique(clusters, return_inverse=True)
    total = np.bincount(number, hits.astype(float) - others)
    count = np.bincount(number)
    drawn = np.random.default_rng(0).integers(len(total), size=(_RESAMPLES, len(total)))
    means = total[drawn].sum(axis=1) / count[drawn].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return f"{(hits.mean() - others.mean()):+.4f} ({low:+.4f} to {high:+.4f})"


if __name__ == "__main__":
    main()
