"""The training data of a re-ranker: queries, and which of their hits are relevant."""

from __future__ import annotations

import numpy as np

from qpr_jax.data.splits import TRAIN, VALIDATION
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import exact_search
from qpr_jax.reranking.features import FEATURES
from qpr_jax.reranking.network import Network
from qpr_jax.training.boosting import Lists
from qpr_jax.training.candidates import Candidates, Finder
from qpr_jax.training.config import TrainConfig, trains
from qpr_jax.training.cross_fitting import fit_network
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.teacher import neighbors

MAX_QUERIES = 5000  # of a run without labels
# The pre-training of the network, on training questions: queries, hits of each, epochs.
PRETRAINED, PRETRAINING_HITS, PRETRAINING_EPOCHS = 9000, 30, 8
MIN_PRETRAINED = 50


def training_queries(dataset: TrainDataset) -> tuple[np.ndarray, np.ndarray]:
    """Choose the queries: their rows, int64 [q], and their groups for the folds, int64 [q].

    They are the members of the validation clusters or, without clusters, a sample of the validation
    questions, each a group.
    """
    held_out = np.flatnonzero(dataset.splits.split_of == VALIDATION)
    clustered = held_out[in_clusters(dataset, held_out)]
    if len(clustered):
        return clustered, dataset.clusters[clustered]
    sample = np.random.default_rng(0).permutation(held_out)[:MAX_QUERIES]
    return np.sort(sample), np.sort(sample)


def in_clusters(dataset: TrainDataset, rows: np.ndarray) -> np.ndarray:
    """Return which of these questions have a known paraphrase, bool [n]."""
    clusters = dataset.clusters
    sizes = np.bincount(clusters[clusters >= 0], minlength=1)
    return (clusters[rows] >= 0) & (sizes[np.maximum(clusters[rows], 0)] > 1)


def relevant_hits(dataset: TrainDataset, lists: Candidates) -> np.ndarray:
    """Label the hits, int8 [m]: 1 if a hit means the same as its query, else 0.

    Relevant are those of its cluster or, without clusters, the nearest one by the teacher.
    """
    queries = lists.queries[lists.owners]
    if len(dataset.splits.pairs["validation"]):
        labels = dataset.clusters[queries] == dataset.clusters[lists.rows]
    else:
        if dataset.teacher is None:
            raise UserError(
                "expected clusters or a teacher to learn from, got neither",
                setting="rerank.kind",
                remedy="set {rerank.kind=none}, or {teacher.model}",
            )
        nearest = neighbors(dataset.teacher, len(dataset.data.questions), lists.queries)[:, 0]
        labels = nearest[lists.owners] == lists.rows
    return labels.astype(np.int8)


def pretrain(
    config: TrainConfig, dataset: TrainDataset, finder: Finder, vectors: np.ndarray, start: Network
) -> Network:
    """Pre-train a network on the training clusters; returns `start` if these are too few.

    The encoder was trained on these questions, so their distances are too good. The features of
    distance are replaced by the means of `start`, which are those of validation questions.
    """
    train = np.flatnonzero(dataset.splits.split_of == TRAIN)
    queries = train[in_clusters(dataset, train)]
    if len(queries) < MIN_PRETRAINED:
        return start
    order = np.random.default_rng([config.seed, 2]).permutation(len(queries))
    queries = np.sort(queries[order[:PRETRAINED]])
    lists = finder.find(exact_search(vectors), queries, PRETRAINING_HITS)
    features = finder.features(lists)
    if trains(config):
        of_distance = [name.startswith("distance") for name in FEATURES]
        features[:, of_distance] = start.mean[of_distance]
    labels, every = relevant_hits(dataset, lists), np.ones(len(queries), bool)
    known = Lists(features, labels, lists.starts, np.zeros(len(queries), np.int64))
    return fit_network(start, known, every, epochs=PRETRAINING_EPOCHS, seed=config.seed)
