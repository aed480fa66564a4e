"""The score that early stopping watches."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from ml_collections import ConfigDict

from qpr_jax.encoders.exported import ExportedEncoder
from qpr_jax.retrieval.evaluate import exact_search, rank, retrieval_scores, roc_auc
from qpr_jax.training.prepare import Prepared


def make_validation(
    prepared: Prepared, settings: ConfigDict
) -> Callable[[ExportedEncoder], dict[str, float]]:
    """A function from an encoder to its scores on the validation pairs.

    `roc_auc`, always: of minus the distance, the pairs against the same queries with candidates
    of another cluster. `mrr` and `hits@1`, where early stopping watches
    `mrr`: per pair, by exact search among all questions, which costs an encoding of them all.
    """
    pairs = prepared.splits.pairs["validation"]

    def score(encoder: ExportedEncoder) -> dict[str, float]:
        def vectors_of(rows: np.ndarray) -> np.ndarray:
            return encoder.encode_words(prepared.words[rows])

        scores = {"roc_auc": pair_roc_auc(vectors_of, prepared, "validation")}
        if settings.early_stopping.metric == "mrr" and np.isfinite(scores["roc_auc"]):
            vectors = encoder.encode_words(prepared.words)
            queries = np.unique(pairs[:, 0])
            found = rank(exact_search(vectors), queries)
            per_pair = retrieval_scores(found, queries, pairs, prepared.clusters)["per_pair"]
            scores |= {"mrr": per_pair["mrr@20"], "hits@1": per_pair["hits@1"]}
        return scores

    return score


def pair_roc_auc(
    vectors_of: Callable[[np.ndarray], np.ndarray], prepared: Prepared, split: str
) -> float:
    """ROC AUC of minus the distance: pairs against the same queries with others' candidates.

    vectors_of: rows of questions -> their vectors. NaN where a distance is not finite.
    """
    triplets = np.column_stack([prepared.splits.pairs[split], prepared.others[split]])
    distinct, at = np.unique(triplets, return_inverse=True)
    # Weights that diverged are told by the NaN, not by warnings.
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = vectors_of(distinct)
        queries, candidates, others = vectors[at.reshape(triplets.shape).T]
        positive, negative = (((queries - side) ** 2).sum(axis=1) for side in (candidates, others))
    return roc_auc(positive, negative) if np.isfinite(positive + negative).all() else math.nan
