"""Training on half of a small table of pairs, tested on its other half.

    python -m experiments.halves pairs.csv --encoder minilm --halves 10

The clusters of the table are halved at random, several times. Each time `qpr train` with its
settings for `--encoder` learns one half. The figure is the average precision of all pairs of
questions of the other half, by their distance, before and after.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile

import numpy as np

from experiments.transfer_scores import precisions
from qpr_jax.data.columns import write_tsv
from qpr_jax.data.question_pairs import (
    COLUMNS,
    QuestionPairs,
    read_question_pairs,
    transitive_clusters,
)
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.training import train
from qpr_jax.training.config import load_config
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.model_families import family_of
from qpr_jax.training.run import validate


def average_precision(encoder: Encoder, questions: list[str], clusters: np.ndarray) -> float:
    """Return the average precision of all pairs of questions, by distance."""
    vectors = encoder.encode(questions)
    left, right = np.triu_indices(len(questions), 1)
    distances = ((vectors[left] - vectors[right]) ** 2).sum(axis=1)
    true = (clusters[left] == clusters[right]) & (clusters[left] >= 0)
    return float(precisions(-distances, true).mean())


def write_half(path: pathlib.Path, data: QuestionPairs, chosen: np.ndarray) -> None:
    """Write the pairs of which both questions are chosen, bool [Q]."""
    inside = np.flatnonzero(chosen[data.pairs].all(axis=1))
    texts = ([data.questions[i] for i in data.pairs[row]] for row in inside)
    labels = data.is_duplicate[inside].astype(int)
    write_tsv(path, COLUMNS, ((*pair, label) for pair, label in zip(texts, labels, strict=True)))


def main() -> None:
    """Print the figures of each half, and their means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs")
    parser.add_argument("--encoder", default="open_student")
    parser.add_argument("--halves", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    data = read_question_pairs(options.pairs)
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    figures = []
    for half in range(options.halves):
        order = np.random.default_rng(half).permutation(clusters.max() + 1)
        trained = np.isin(clusters, order[: len(order) // 2])
        rows = np.flatnonzero(~trained)
        questions = [data.questions[row] for row in rows]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "half.tsv")
            write_half(path, data, trained)
            named = {"encoder.pretrained": options.encoder, "data.path": str(path)}
            named |= dict(one.split("=", 1) for one in options.set)
            config = load_config("fine_tune", named)
            validate(config)
            start = train.read_models(config)["pretrained"]
            dataset = load_dataset(config, path, start)
            config = train.with_batch_size(config, dataset)
            params = train.train(config, dataset, pathlib.Path(folder))
            encoder = family_of(start).export(config, dataset, params)
        pair = [average_precision(one, questions, clusters[rows]) for one in (start, encoder)]
        figures.append(pair)
        print(f"half {half}: before {pair[0]:.3f}, after {pair[1]:.3f}", flush=True)
    before, after = np.transpose(figures)
    print(f"mean: before {before.mean():.3f}, after {after.mean():.3f}, ", end="")
    print(f"higher in {(after > before).sum()} of {len(after)}")


if __name__ == "__main__":
    main()
