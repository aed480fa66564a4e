"""The stage of a run after the index: train the light re-ranker on the validation questions.

It must learn from queries that the encoder was not trained on: all members of the validation
clusters. Queries are divided into folds by cluster. The validation scores are by networks fitted to
the other folds; the exported network is fitted to all.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.data.splits import TEST
from qpr_jax.encoders.base import Encoder
from qpr_jax.evaluation.retrieval import RankFn, rank
from qpr_jax.machine import peak_memory
from qpr_jax.reranking.base import rank_hits
from qpr_jax.reranking.cross_encoder import CrossEncoder, read_cross_encoder
from qpr_jax.reranking.features import zero_weights
from qpr_jax.reranking.light import LightModel, Network, predict
from qpr_jax.training import rerank_data
from qpr_jax.training.config import TrainConfig, trains
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.rerank_data import FOLDS, Examples, Finder, Lists, LogitCache
from qpr_jax.training.rerank_network import add_word_weights, init_network, train_network
from qpr_jax.training.sections import naming

log = logging.getLogger(__name__)

LOGITS = "cross_logits"  # of a work directory
STACKED_CANDIDATES = 20  # more would take too long with a cross-encoder
PRETRAINING_EPOCHS, EPOCHS = 3, 15


@dataclass(frozen=True)
class TrainedReranker:
    """The re-ranker of a run, and the networks of its cross-validation.

    Attributes:
      model: the exported model, fitted to all queries.
      networks: one for each fold, fitted to the other folds; then that of the model.
      folds: int64 [Q], the fold of each question; -1 for one that is not a training query.
      facts: facts for the report.
      finder: finds hits and computes their features.
    """

    model: LightModel
    networks: list[Network]
    folds: np.ndarray
    facts: dict[str, Any]
    finder: Finder

    def search(self, first: RankFn) -> RankFn:
        """Return the search in two stages over `first`; validation questions out-of-fold."""

        def search(queries: np.ndarray, k: int) -> np.ndarray:
            found = rank(first, queries, max(k, self.finder.candidates))
            lists = self.finder.collect(found, queries)
            fold = self.folds[lists.queries[lists.owners]]
            scores = out_of_fold(self.networks, self.finder.features(lists), fold)
            order = rank_hits(scores, lists.distances, lists.rows, lists.starts)
            for i, (start, stop) in enumerate(itertools.pairwise(lists.starts.tolist())):
                found[i, : stop - start] = lists.rows[order[start:stop]]
            return found[:, :k]

        return search


def out_of_fold(networks: list[Network], features: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Compute raw scores, float64 [m], by networks that were not fitted to the query.

    features: float32 [m, f]. folds: int [m], of the queries; -1 for none.
    """
    scores = np.empty(len(features))
    for fold in np.unique(folds).tolist():
        own = folds == fold
        scores[own] = predict(networks[fold], features[own])
    return scores


def read_scorer(config: TrainConfig) -> CrossEncoder | None:
    """Read the cross-encoder that the config names, if any; UserError if it cannot be read."""
    if not (config.rerank.candidates and config.rerank.cross_encoder):
        return None
    with naming("rerank.cross_encoder"):
        return read_cross_encoder(os.path.expanduser(config.rerank.cross_encoder))


def train_reranker(
    config: TrainConfig,
    dataset: TrainDataset,
    encoder: Encoder,
    vectors: np.ndarray,
    logits: LogitCache | None = None,
) -> TrainedReranker | None:
    """Train a re-ranker of a run; None if it has none, or there is too little to learn from.

    Args:
      config, dataset, encoder, vectors: of the run; vectors float32 [Q, d], of all questions.
      logits: of a cross-encoder, which become the last feature; fewer hits are reordered then.
    """
    if not config.rerank.candidates:
        return None
    start, questions = time.perf_counter(), dataset.data.questions
    candidates = STACKED_CANDIDATES if logits else config.rerank.candidates
    finder = Finder(encoder, questions, vectors, candidates=candidates, logits=logits)
    queries, groups = rerank_data.training_queries(dataset)
    folds = np.full(len(questions), -1)
    folds[queries] = rerank_data.assign_folds(groups, config.seed)
    lists = finder.find(queries, candidates)
    # Test questions are among the hits, for gaps and ranks, but nothing is learned from them.
    learned = dataset.splits.split_of[lists.rows] != TEST
    labels = rerank_data.relevant_hits(dataset, lists)[learned]
    known = Examples(lists.select(learned), labels, np.empty((len(labels), 0), np.float32))
    if not rerank_data.suffices(known):
        return None
    network, weights, features = _pretrain(config, dataset, finder, lists)
    known = known._replace(features=features[learned])
    # The last one, of a fold without queries, is fitted to all.
    networks = [
        train_network(network, known.without(folds, fold), epochs=EPOCHS, seed=config.seed)[0]
        for fold in range(FOLDS + 1)
    ]
    model = LightModel(
        encoder=encoder.identity,
        candidates=candidates,
        network=networks[-1],
        frequencies=finder.frequencies,
        word_weights=weights,
        cross_encoder=logits.identity if logits else "",
        settings={"seed": config.seed},
    )
    facts = {
        **({"cross_encoder": model.cross_encoder} if logits else {}),
        "candidates": candidates,
        "queries": len(queries),
        "hits": len(known.labels),
        "relevant_hits": int(known.labels.sum()),
        "seconds": time.perf_counter() - start,
        "peak_memory_gib": peak_memory() / 2**30,
    }
    return TrainedReranker(model, networks, folds, facts, finder)


def _pretrain(
    config: TrainConfig, dataset: TrainDataset, finder: Finder, lists: Lists
) -> tuple[Network, np.ndarray, np.ndarray]:
    """Train a network and word weights on training questions, if there are enough.

    Returns:
      The network, the word weights, and the features of `lists` with these.
    """
    features, seed = finder.features(lists), config.seed
    start = init_network(features, seed)
    early = rerank_data.pretraining_examples(
        dataset, finder, start.mean, trained=trains(config), seed=seed
    )
    if early is None:
        return start, zero_weights(), features
    known, rows = early
    network, weights = train_network(start, known, epochs=PRETRAINING_EPOCHS, seed=seed, rows=rows)
    finder.use_weights(weights)
    features = finder.features(lists)
    return add_word_weights(network, features), weights, features
