"""The stage of a run after the index: train the light re-ranker on the validation questions.

It must learn from queries that the encoder was not trained on: all members of the validation
clusters. Queries are divided into folds by cluster. The validation scores are by networks fitted to
the other folds; the exported network is fitted to all.
"""

from __future__ import annotations

import itertools
import logging
import os
import pathlib
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.data.splits import TEST
from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import RankFn, exact_search, rank
from qpr_jax.files import MANIFEST, read_object
from qpr_jax.machine import peak_memory
from qpr_jax.reranking.base import owners_of, rank_hits
from qpr_jax.reranking.calibration import calibrate
from qpr_jax.reranking.cross_encoder import CrossEncoder, read_cross_encoder
from qpr_jax.reranking.features import zero_weights
from qpr_jax.reranking.light import LIGHT, STACKED, LightModel, save_light
from qpr_jax.reranking.network import Network, predict
from qpr_jax.training import rerank_data
from qpr_jax.training.candidates import Candidates, Finder, LogitCache
from qpr_jax.training.config import TrainConfig, trains
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.rerank_data import FOLDS, Lists
from qpr_jax.training.rerank_network import add_word_weights, init_network, train_network

log = logging.getLogger(__name__)

LOGITS = "cross_logits"  # of a work directory
NAMES = (LIGHT, STACKED)
STACKED_CANDIDATES = 20  # more would take too long with a cross-encoder
PRETRAINING_EPOCHS, EPOCHS = 3, 15
_TIMED = 1000  # queries that the speed is measured with


@dataclass(frozen=True)
class TrainedReranker:
    """The re-ranker of a run, and the networks of its cross-validation.

    Attributes:
      model: the exported model, fitted to all queries.
      networks: one for each fold, fitted to the other folds.
      folds: int64 [Q], the fold of each question; -1 for one that is not a training query.
      facts: facts for the report.
      finder: finds candidates and computes their features.
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
            scores = self.scores(self.finder.features(lists), fold)
            order = rank_hits(scores, lists.distances, lists.rows, lists.starts)
            for i, (start, stop) in enumerate(itertools.pairwise(lists.starts.tolist())):
                found[i, : stop - start] = lists.rows[order[start:stop]]
            return found[:, :k]

        return search

    def scores(self, features: np.ndarray, folds: np.ndarray) -> np.ndarray:
        """Compute raw scores, float64 [m], by networks that were not fitted to the query.

        features: float32 [m, f]. folds: int [m], of the queries; -1 for none.
        """
        scores = np.empty(len(features))
        for number, network in [(-1, self.model.network), *enumerate(self.networks)]:
            own = folds == number
            scores[own] = predict(network, features[own])
        return scores


def read_scorer(config: TrainConfig) -> CrossEncoder | None:
    """Read the cross-encoder that the config names, if any; UserError if it cannot be read."""
    if not (config.rerank.candidates and config.rerank.cross_encoder):
        return None
    try:
        return read_cross_encoder(os.path.expanduser(config.rerank.cross_encoder))
    except (UserError, FileNotFoundError) as error:
        what = error.what if isinstance(error, UserError) else str(error)
        raise UserError(what, setting="rerank.cross_encoder") from error


def lacks_stacked(folder: pathlib.Path, scorer: CrossEncoder | None) -> bool:
    """Whether the run lacks a stacked re-ranker with this cross-encoder, or its figures."""
    if scorer is None:
        return False
    reported = read_object(folder / "report.json").get("reranker_cross", {})
    shipped = read_object(folder / "export" / STACKED / MANIFEST)
    known = (reported.get("cross_encoder"), shipped.get("cross_encoder"))
    return known != (scorer.identity, scorer.identity)


def train_light(
    folder: pathlib.Path,
    config: TrainConfig,
    dataset: TrainDataset,
    encoder: Encoder,
    vectors: np.ndarray,
) -> TrainedReranker | None:
    """Train the re-ranker of a run; None if there is none.

    Args:
      folder: the work directory; gets export/reranker/.
      config: its section `rerank` says whether to train one.
      dataset: the questions and their clusters or, without these, the teacher.
      encoder: the encoder of the run.
      vectors: float32 [Q, d], of all questions.
    """
    candidates = config.rerank.candidates
    if not candidates:
        return None
    finder = Finder(encoder, dataset.data.questions, vectors, candidates=candidates)
    return _train(folder, config, dataset, encoder.identity, vectors, finder)


def train_stacked(
    folder: pathlib.Path,
    config: TrainConfig,
    dataset: TrainDataset,
    encoder: Encoder,
    vectors: np.ndarray,
    scorer: CrossEncoder,
) -> TrainedReranker | None:
    """As `train_light`, for fewer hits, and with the logit of a cross-encoder as the last feature.

    It is written to export/reranker_cross/.
    """
    questions = dataset.data.questions
    logits = LogitCache(folder / LOGITS, scorer, questions)
    finder = Finder(encoder, questions, vectors, candidates=STACKED_CANDIDATES, logits=logits)
    return _train(folder, config, dataset, encoder.identity, vectors, finder)


def _train(
    folder: pathlib.Path,
    config: TrainConfig,
    dataset: TrainDataset,
    encoder: str,
    vectors: np.ndarray,
    finder: Finder,
) -> TrainedReranker | None:
    start = time.perf_counter()
    scorer = finder.logits.identity if finder.logits else ""
    queries, groups = rerank_data.training_queries(dataset)
    folds = np.full(len(dataset.data.questions), -1)
    folds[queries] = rerank_data.assign_folds(groups, config.seed)
    lists = finder.find(exact_search(vectors), queries)
    # Test questions are among the hits, for gaps and ranks, but nothing is learned from them.
    learned = dataset.splits.split_of[lists.rows] != TEST
    labels, no_features = rerank_data.relevant_hits(dataset, lists), np.empty((len(learned), 0))
    known = Lists(no_features, labels, lists.starts, folds[queries], folds[lists.rows])
    known = known.select(np.full(len(queries), True), learned)
    if not rerank_data.suffices(known):
        useful = rerank_data.learnable(known.labels, known.starts)
        log.warning(
            "no re-ranker: expected %s validation questions or more, of several clusters, with a "
            "relevant and another question among their hits, got %s of %s clusters; raise "
            "data.held_out_pairs, or set rerank.candidates=0",
            *(rerank_data.MIN_QUERIES, useful.sum(), len(np.unique(groups[useful]))),
        )
        return None
    network, weights, features = _pretrain(config, dataset, finder, vectors, lists)
    known = known._replace(features=features[learned])
    # The last one, of a fold that has no query, is fitted to all of them.
    networks = [
        train_network(network, known.without(fold), epochs=EPOCHS, seed=config.seed)[0]
        for fold in range(FOLDS + 1)
    ]
    scores = _out_of_fold(networks, known)
    model = LightModel(
        encoder=encoder,
        candidates=finder.candidates,
        network=networks[-1],
        calibration=calibrate(scores, known.labels),
        frequencies=finder.frequencies,
        word_weights=weights,
        cross_encoder=scorer,
        settings={"seed": config.seed},
    )
    facts = {
        **_facts(scores, model, known),
        "pairs_per_second": _rate(finder, model, lists),
        "seconds": time.perf_counter() - start,
        "peak_memory_gib": peak_memory() / 2**30,
    }
    save_light(folder / "export" / NAMES[bool(scorer)], model)
    return TrainedReranker(model, networks[:-1], folds, facts, finder)


def _pretrain(
    config: TrainConfig,
    dataset: TrainDataset,
    finder: Finder,
    vectors: np.ndarray,
    lists: Candidates,
) -> tuple[Network, np.ndarray, np.ndarray]:
    """Train a network and word weights on training questions, if there are enough.

    Returns:
      The network, the word weights, and the features of `lists` with these.
    """
    features, seed = finder.features(lists), config.seed
    start = init_network(features, seed)
    early = rerank_data.pretraining_lists(
        *(dataset, finder, vectors, start.mean), trained=trains(config), seed=seed
    )
    if early is None:
        return start, zero_weights(), features
    known, rows = early
    network, weights = train_network(start, known, epochs=PRETRAINING_EPOCHS, seed=seed, rows=rows)
    finder.use_weights(weights)
    features = finder.features(lists)
    return add_word_weights(network, features), weights, features


def _out_of_fold(networks: list[Network], lists: Lists) -> np.ndarray:
    """Compute the score of each hit by the network of the fold of its query, float64 [m]."""
    folds, scores = lists.folds[owners_of(lists.starts)], np.empty(len(lists.features))
    for fold in range(FOLDS):
        scores[folds == fold] = predict(networks[fold], lists.features[folds == fold])
    return scores


def _facts(scores: np.ndarray, model: LightModel, known: Lists) -> dict[str, Any]:
    """Collect the facts for the report, and log how well the queries are ranked."""
    near = -known.features[:, 0]
    log.info(
        "re-ranker: MRR@20 of %s validation questions, without hits of the test split, %.4f, "
        "reranked %.4f",
        f"{len(known.folds):,}",
        rerank_data.reciprocal_ranks(near, known.labels, known.starts).mean(),
        rerank_data.reciprocal_ranks(scores, known.labels, known.starts).mean(),
    )
    return {
        "candidates": model.candidates,
        **({"cross_encoder": model.cross_encoder} if model.cross_encoder else {}),
        "queries": len(known.folds),
        "hits": len(known.labels),
        "relevant_hits": int(known.labels.sum()),
    }


def _rate(finder: Finder, model: LightModel, lists: Candidates) -> float:
    """Measure how many hits are scored in a second, with many queries in a call."""
    count = min(_TIMED, len(lists.queries))
    hits = int(lists.starts[count])
    some = Candidates(
        lists.queries[:count], lists.rows[:hits], lists.distances[:hits], lists.starts[: count + 1]
    )
    start = time.perf_counter()
    model.scores(finder.features(some))
    return hits / (time.perf_counter() - start)
