"""Fit the probabilities of pairs by an encoder without labels of its own to the Quora pairs.

    python -m experiments.calibration open_student --texts TEXTS --order 5 --out FOLDER

Writes FOLDER/export/calibration, which belongs into the folder of the encoder. The encoder and its
re-ranker must not have been trained on the Quora pairs. TEXTS is the file of
`experiments.open_texts`: texts of other kinds, for whose pairs the probabilities of
all-MiniLM-L6-v2 are learned, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import pathlib
import sys

import numpy as np

from qpr_jax.cli.program import run_program
from qpr_jax.data.sources import find_quora
from qpr_jax.evaluation.retrieval import exact_search, rank
from qpr_jax.index.vectors import pair_distances
from qpr_jax.reranking.calibration import CALIBRATION, save_calibration
from qpr_jax.reranking.pairs import pair_features
from qpr_jax.reranking.stages import Stages, read_stages
from qpr_jax.training.config import load_config
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.pair_calibration import calibrate_pairs, contrast_pairs
from qpr_jax.training.teacher import cached_vectors

log = logging.getLogger("qpr_jax")

QUERIES, HITS = 6000, 20  # of --texts


def read_taught(path: pathlib.Path, stages: Stages) -> tuple[np.ndarray, np.ndarray]:
    """Features of texts and their nearest, and the probabilities of all-MiniLM-L6-v2."""
    texts = path.read_text().splitlines()
    teacher, known = read_stages("minilm")
    vectors, taught = (cached_vectors(encoder, texts) for encoder in (stages.encoder, teacher))
    queries = np.sort(np.random.default_rng(0).permutation(len(texts))[:QUERIES])
    found = rank(exact_search(np.asarray(vectors, np.float32)), queries, HITS).ravel()
    queries = np.repeat(queries, HITS)
    distances, others = (pair_distances(v, queries, found) for v in (vectors, taught))
    features = stages.pair_features().of_pairs(texts, queries, found, distances)
    return features, known.require_calibration().probabilities(pair_features(others))


def main() -> int:
    """Fit, test, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("encoder", help="folder or name")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--texts", type=pathlib.Path, help="one a line")
    parser.add_argument("--order", type=float, default=0.0, help="see `benchmarks.opposites`")
    given = parser.parse_args()
    encoder, stages = read_stages(given.encoder)
    dataset = load_dataset(load_config("quora_sdml"), find_quora())
    vectors = cached_vectors(encoder, dataset.data.questions)
    taught = read_taught(given.texts, stages) if given.texts else None
    if not (known := calibrate_pairs(dataset, encoder, vectors, stages.light, taught)):
        return 1
    stages.calibration = found = dataclasses.replace(known, order=given.order)
    texts, pairs = contrast_pairs(dataset, "test")
    first, second = pairs.T
    distances = pair_distances(encoder.encode(texts), first, second)
    scores = stages.pair_features().score_pairs(found, texts, first, second, distances)
    quantiles = ", ".join(f"{score:.2f}" for score in np.quantile(scores, [0.5, 0.9]))
    log.info("contrasts of test questions: 50 and 90 %% have scores below %s", quantiles)
    save_calibration(given.out / "export" / CALIBRATION, found)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
