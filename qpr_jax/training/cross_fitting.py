"""Cross-validation of scorers: fit trees and a small network for each fold, and for all data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qpr_jax.reranking.network import Network
from qpr_jax.reranking.scorer import Scorer, score_features
from qpr_jax.training.boosting import FOLDS, Lists, Size, cross_fit_forests, parallel
from qpr_jax.training.rerank_network import train_network

EPOCHS = 15


class CrossFit(NamedTuple):
    """A scorer for each fold, fitted to the other folds, and one fitted to all queries.

    scorers, sizes: of each fold. shipped, shipped_size: fitted to all queries. scores: float64 [m],
    out-of-fold raw scores of the hits. importances: float64 [f], the share of each feature in the
    total gain of the splits of the shipped trees.
    """

    scorers: list[Scorer]
    sizes: list[Size]
    shipped: Scorer
    shipped_size: Size
    scores: np.ndarray
    importances: np.ndarray


def cross_fit(lists: Lists, start: Network, seed: int) -> CrossFit:
    """Fit the scorers, and compute the out-of-fold score of every hit.

    start: the initial weights of each network.
    """
    found = cross_fit_forests(lists, seed)

    def fit(fold: int) -> Network:
        return train_network(start, lists.without(fold), epochs=EPOCHS, seed=seed)[0]

    networks = parallel(fit, [(fold,) for fold in range(len(found.forests))])
    scorers = [*map(Scorer, found.forests, networks)]
    fold_of_hit = np.repeat(lists.folds, np.diff(lists.starts))
    scores = np.empty(len(lists.features))
    for fold in range(FOLDS):
        own = fold_of_hit == fold
        scores[own] = score_features(scorers[fold], lists.features[own])
    return CrossFit(
        scorers[:-1], found.sizes[:-1], scorers[-1], found.sizes[-1], scores, found.importances
    )
