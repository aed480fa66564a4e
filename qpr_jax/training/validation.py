"""The score that early stopping watches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from ml_collections import ConfigDict

from qpr_jax.encoders.exported import ExportedEncoder
from qpr_jax.errors import UserError
from qpr_jax.retrieval.evaluate import exact_search, rank, retrieval_scores, roc_auc
from qpr_jax.training.prepare import Prepared

PERMUTATION_SEED = 0


def make_validation(
    prepared: Prepared, settings: ConfigDict
) -> Callable[[ExportedEncoder], dict[str, float]]:
    """A function from an encoder to its scores on the validation pairs.

    `roc_auc`, always: of minus the distance, the pairs against the same queries with their
    candidates permuted to another cluster. `mrr` and `hits@1`, where early stopping watches
    `mrr`: per pair, by exact search among all questions, which costs an encoding of them all.
    """
    pairs = prepared.splits.pairs["validation"]

    def score(encoder: ExportedEncoder) -> dict[str, float]:
        scores = {"roc_auc": pair_roc_auc(encoder, prepared, pairs)}
        if settings.early_stopping.metric == "mrr":
            vectors = encoder.encode_words(prepared.questions.words)
            queries = np.unique(pairs[:, 0])
            found = rank(exact_search(vectors), queries)
            per_pair = retrieval_scores(found, queries, pairs, prepared.clusters)["per_pair"]
            scores |= {"mrr": per_pair["mrr@20"], "hits@1": per_pair["hits@1"]}
        return scores

    return score


def pair_roc_auc(encoder: ExportedEncoder, prepared: Prepared, pairs: np.ndarray) -> float:
    """ROC AUC of minus the distance: pairs against the same queries with others' candidates."""
    distinct, at = np.unique(pairs, return_inverse=True)
    vectors = encoder.encode_words(prepared.questions.words[distinct])
    queries, candidates = vectors[at.reshape(pairs.shape).T]
    others = permuted_to_other_clusters(prepared.clusters[pairs[:, 0]], seed=PERMUTATION_SEED)
    return roc_auc(
        ((queries - candidates) ** 2).sum(axis=1), ((queries - candidates[others]) ** 2).sum(axis=1)
    )


def permuted_to_other_clusters(clusters: np.ndarray, *, seed: int) -> np.ndarray:
    """A permutation of the pairs, int [P], that gives each pair the place of another cluster.

    clusters: int [P], the cluster of each pair. UserError where one cluster holds more than half
    of the pairs, so that there is none.
    """
    count = len(clusters)
    # Ordered by cluster, a shift by half the pairs leaves every cluster of at most half of them.
    if np.unique(clusters, return_counts=True)[1].max() * 2 > count:
        raise UserError(
            "ROC AUC: expected no cluster with more than half of the pairs of a split; hold out "
            "more with `--config.data.held_out_pairs`"
        )
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(count)
    # Shuffled first, so that which clusters meet is drawn; then clusters in a drawn order.
    rank_of = rng.permutation(clusters.max() + 1)
    ordered = shuffled[np.argsort(rank_of[clusters[shuffled]], kind="stable")]
    result = np.empty(count, np.int64)
    result[ordered] = np.roll(ordered, count // 2)
    return result
