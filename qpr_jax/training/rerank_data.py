"""The training data of a re-ranker: queries, and which of their hits are relevant."""

from __future__ import annotations

import numpy as np

from qpr_jax.data.splits import TRAIN, VALIDATION
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import exact_search
from qpr_jax.reranking.features import FEATURES, WORD_WEIGHTS
from qpr_jax.reranking.network import Network
from qpr_jax.reranking.word_weights import zero_weights
from qpr_jax.training.boosting import Lists
from qpr_jax.training.candidates import Candidates, Finder
from qpr_jax.training.config import TrainConfig, trains
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.rerank_network import WordRows, init_network, train_network
from qpr_jax.training.teacher import neighbors

MAX_QUERIES = 5000  # of a run without labels
# The pre-training of the network, on training questions: queries, hits of each, epochs.
PRETRAINED, PRETRAINING_HITS, PRETRAINING_EPOCHS = 40_000, 30, 3
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
) -> tuple[Network, np.ndarray]:
    """Train a network and word weights on training questions, and hits that are such questions.

    The encoder was trained on these questions, so their distances are too good, and the logits of a
    cross-encoder would take hours: these features are replaced by the means of `start`, which are
    those of validation questions.

    Returns:
      The network, and the word weights; `start` and zeros if there are too few questions.
    """
    is_train = dataset.splits.split_of == TRAIN
    queries = np.flatnonzero(is_train)
    if len(dataset.splits.pairs["validation"]):
        queries = queries[in_clusters(dataset, queries)]
    if len(queries) < MIN_PRETRAINED:
        return start, zero_weights()
    order = np.random.default_rng([config.seed, 2]).permutation(len(queries))
    queries = np.sort(queries[order[:PRETRAINED]])
    found = finder.find(exact_search(vectors), queries, PRETRAINING_HITS)
    found = found.select(is_train[found.rows])
    features = finder.features(found, logits=False)
    unknown = np.arange(len(start.mean)) >= len(FEATURES)
    if trains(config):
        unknown[: len(FEATURES)] = [name.startswith("distance") for name in FEATURES]
    features[:, unknown] = start.mean[unknown]
    no_folds = np.zeros(len(queries), np.int64), np.full(len(found.rows), -1)
    known = Lists(features, relevant_hits(dataset, found), found.starts, *no_folds)
    words = WordRows(*finder.weight_rows(found))
    return train_network(start, known, epochs=PRETRAINING_EPOCHS, seed=config.seed, words=words)


def add_word_weights(network: Network, features: np.ndarray) -> Network:
    """Make the sum of the word weights a term of a network that was trained together with them.

    features: float32 [m, f], with the trained word weights.
    """
    fresh, rows = init_network(features), [FEATURES.index(name) for name in WORD_WEIGHTS]
    hidden, linear = network.hidden.copy(), network.linear.copy()
    hidden[rows], linear[rows] = 0, 0
    if fresh.scale[rows[0]]:
        linear[rows[0]] = 1 / fresh.scale[rows[0]]
    return fresh._replace(hidden=hidden, bias=network.bias, output=network.output, linear=linear)
