"""An encoder scored on labelled pairs: which are duplicates, and which of all pairs are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qpr_jax.data.clusters import pair_count, transitive_clusters
from qpr_jax.data.labeled_pairs import LabeledPairs
from qpr_jax.evaluation.pairs import best_thresholds, classification_scores, mining_scores
from qpr_jax.index.mining import Pairs, closest_pairs, pair_distances

Encode = Callable[[list[str]], np.ndarray]
Log = Callable[[str], object]


def score_classification(
    encode: Encode, validation: LabeledPairs, test: LabeledPairs
) -> dict[str, Any]:
    """`classification_scores` of both, at `thresholds` that are best on the first."""
    near, far = (
        pair_distances(encode(labeled.questions), *labeled.pairs.T)
        for labeled in (validation, test)
    )
    thresholds = best_thresholds(near, validation.is_duplicate)
    return {
        "thresholds": thresholds,
        "validation": classification_scores(near, validation.is_duplicate, thresholds),
        "test": classification_scores(far, test.is_duplicate, thresholds),
    }


def score_mining(
    encode: Encode, labeled: LabeledPairs, log: Log = lambda line: None
) -> dict[str, float]:
    """`mining_scores` of the pairs that lie closest among all of the labelled questions."""
    return mining_scores(*mined(encode, labeled, log))


def mined(
    encode: Encode, labeled: LabeledPairs, log: Log = lambda line: None
) -> tuple[Pairs, np.ndarray]:
    """The closest of all pairs of labelled questions, and the clusters of those that are true."""
    duplicates = labeled.pairs[labeled.is_duplicate]
    clusters = transitive_clusters(len(labeled.questions), duplicates)
    depth = 100_000 + 10 * pair_count(clusters)
    return closest_pairs(encode(labeled.questions), depth, log=log), clusters
