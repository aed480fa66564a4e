"""The stage of a run after the index: train the light re-ranker on the validation questions.

It must learn from queries that the encoder was not trained on: all members of the validation
clusters. Queries are divided into folds by cluster. The validation scores are by networks fitted to
the other folds; the exported network is fitted to all.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from qpr_jax.data.splits import TEST
from qpr_jax.encoders.base import Encoder
from qpr_jax.evaluation.retrieval import RankFn, index_search
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.vectors import Vectors
from qpr_jax.reranking.base import rank_hits
from qpr_jax.reranking.cross_encoder import CrossEncoder, read_cross_encoder
from qpr_jax.reranking.features import FEATURES, WORD_WEIGHTS, FeatureExtractor, zero_weights
from qpr_jax.reranking.light import LightModel, Network, predict, standardize
from qpr_jax.reranking.terms import Frequencies
from qpr_jax.training import rerank_data
from qpr_jax.training.config import TrainConfig, trains
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.rerank_data import FOLDS, Examples, Finder, Lists
from qpr_jax.training.sections import naming

log = logging.getLogger(__name__)

STACKED_CANDIDATES = 20  # more would take too long with a cross-encoder
PRETRAINING_EPOCHS, EPOCHS = 3, 15
HIDDEN = 64
_BATCH = 64  # queries
_LEARNING_RATE, _WEIGHT_DECAY, _DROPOUT = 3e-3, 1e-2, 0.2
_TRAINED = ("hidden", "bias", "output", "linear")
_WORDS = "word_weights"


@dataclasses.dataclass
class TrainedReranker:
    """The re-ranker of a run: the model, fitted to all queries, and facts for the report."""

    model: LightModel
    facts: dict[str, Any]
    finder: Finder
    networks: list[Network]  # one for each fold, fitted to the others; then that of the model
    folds: np.ndarray  # int64 [Q], the fold of each question; -1 for one that is no query

    def rerank(self, queries: np.ndarray, found: np.ndarray) -> np.ndarray:
        """Reorder the hits of queries, a ranking int64 [q, k], out of fold."""
        found, lists = found.copy(), self.finder.collect(found, queries)
        fold = self.folds[lists.queries[lists.owners]]
        features, scores = self.finder.features(lists), np.empty(len(lists.rows))
        for number in np.unique(fold).tolist():
            own = fold == number
            scores[own] = predict(self.networks[number], features[own])
        order = rank_hits(scores, lists.distances, lists.rows, lists.starts)
        for i, (start, stop) in enumerate(itertools.pairwise(lists.starts.tolist())):
            found[i, : stop - start] = lists.rows[order[start:stop]]
        return found


def read_scorer(config: TrainConfig) -> CrossEncoder | None:
    """Read the cross-encoder that the config names, if any; UserError if it cannot be read."""
    if not (config.rerank.candidates and config.rerank.cross_encoder):
        return None
    with naming("rerank.cross_encoder"):
        return read_cross_encoder(config.rerank.cross_encoder)


def train_reranker(
    config: TrainConfig,
    dataset: TrainDataset,
    encoder: Encoder,
    vectors: np.ndarray,
    scorer: CrossEncoder | None = None,
    index: Vectors | None = None,
) -> TrainedReranker | None:
    """Train a re-ranker of a run; None if it has none, or there is too little to learn from.

    vectors: float32 [Q, d], of all questions.
    scorer: a cross-encoder, whose logits become the last feature; fewer hits are reordered then.
    index: of the vectors; None: one is built.
    """
    if not config.rerank.candidates:
        return None
    start, questions = time.perf_counter(), dataset.data.questions
    candidates = STACKED_CANDIDATES if scorer else config.rerank.candidates
    frequencies = Frequencies.count(questions)
    extractor = FeatureExtractor(encoder, frequencies, zero_weights())
    finder = Finder(questions, vectors, extractor, candidates, scorer)
    queries, folds = rerank_data.assign_folds(dataset, config.seed)
    lists = finder.find(queries)
    # Test questions are among the hits, for gaps and ranks, but nothing is learned from them.
    learned = dataset.splits.split_of[lists.rows] != TEST
    labels, others = rerank_data.relevant_hits(dataset, lists)[learned], lists.select(learned)
    if not rerank_data.suffices(others, labels):
        return None
    search = index_search(index or Vectors.build(Recipe(), vectors), vectors)
    network, weights, features = _pretrain(config, dataset, finder, lists, search)
    known = Examples(others, labels, features[learned])
    # The last one, of a fold without queries, is fitted to all.
    networks = [
        train_network(network, known.without(folds, fold), epochs=EPOCHS, seed=config.seed)[0]
        for fold in range(FOLDS + 1)
    ]
    model = LightModel(
        encoder=encoder.identity,
        candidates=candidates,
        network=networks[-1],
        frequencies=frequencies,
        word_weights=weights,
        cross_encoder=scorer.identity if scorer else "",
        settings={"seed": config.seed},
    )
    facts = {
        **({"cross_encoder": model.cross_encoder} if scorer else {}),
        "candidates": candidates,
        "queries": len(queries),
        "hits": len(known.labels),
        "relevant_hits": int(known.labels.sum()),
        "seconds": time.perf_counter() - start,
    }
    return TrainedReranker(model, facts, finder, networks, folds)


def _pretrain(
    config: TrainConfig, dataset: TrainDataset, finder: Finder, lists: Lists, search: RankFn
) -> tuple[Network, np.ndarray, np.ndarray]:
    """Train a network and word weights on training questions, if there are enough.

    Also returns the features of `lists` with these weights.
    """
    features, seed = finder.features(lists), config.seed
    start = init_network(features, seed)
    early = rerank_data.pretraining_examples(
        dataset, finder, search, start.mean, trained=trains(config), seed=seed
    )
    if early is None:
        return start, zero_weights(), features
    known, rows = early
    network, weights = train_network(start, known, epochs=PRETRAINING_EPOCHS, seed=seed, rows=rows)
    finder.extractor.weights = weights
    features = finder.features(lists)
    return add_word_weights(network, features), weights, features


def init_network(features: np.ndarray, seed: int = 0) -> Network:
    """Draw random weights; standardize by the features of hits, float32 [m, f]."""
    rows = features.astype(np.float64)
    rng, width = np.random.default_rng(seed), features.shape[1]
    # A constant feature gets the scale 0, so that it is ignored on other data, too.
    spread = rows.std(axis=0)
    scale = np.where(spread > 1e-6, 1 / np.maximum(spread, 1e-6), 0)
    hidden = rng.normal(size=(width, HIDDEN)) * np.sqrt(2 / width)
    output = rng.normal(size=HIDDEN) * 0.1 * np.sqrt(2 / HIDDEN)
    arrays = (rows.mean(axis=0), scale, hidden, np.zeros(HIDDEN), output, np.zeros(width))
    return Network(*(array.astype(np.float32) for array in arrays))


def train_network(
    start: Network,
    examples: Examples,
    *,
    epochs: int,
    seed: int = 0,
    rows: np.ndarray | None = None,
) -> tuple[Network, np.ndarray]:
    """Train a network and, if `rows` are given, word weights.

    The score of a hit is the output of the network plus the sum of its word weights. With p the
    softmax over the hits of a query, the loss of the query is the mean of two terms: -log of the
    sum of p over the relevant hits, and the mean of -log p over them. Queries without a relevant
    hit are left out.

    Returns the network, with the mean and scale of `start`, and word weights, float32 [2 ** BITS].

    rows: int32 [m, MOST], of the word weights of each hit, -1 for none; None to leave them 0.
    """
    lists, labels = examples.lists, examples.labels
    useful = np.flatnonzero(np.bincount(lists.owners, labels, len(lists.queries)))
    if not len(useful):
        return start, zero_weights()
    inputs = standardize(start, examples.features).astype(np.float32)
    sizes = np.diff(lists.starts)
    places = np.arange(sizes.max())
    batches = -(-len(useful) // _BATCH)
    params = {name: getattr(start, name) for name in _TRAINED}
    if rows is not None:
        params[_WORDS] = zero_weights()
    optimizer = _make_optimizer(epochs * batches)
    step = functools.partial(_step, optimizer)
    state, key = optimizer.init(params), jax.random.key(seed)
    for epoch in range(epochs):
        order = useful[np.random.default_rng([seed, epoch]).permutation(len(useful))]
        # The last batch is filled up with the first queries of the order.
        for queries in np.resize(order, (batches, _BATCH)):
            known = places < sizes[queries, None]
            hits = np.where(known, lists.starts[queries, None] + places, 0)
            key, dropout = jax.random.split(key)
            words = None if rows is None else rows[hits]
            batch = (inputs[hits], known & (labels[hits] > 0), known, words)
            params, state = step(params, state, batch, dropout)
    trained = {name: np.array(array) for name, array in params.items()}
    weights = trained.pop(_WORDS, zero_weights())
    return start._replace(**trained), weights


def add_word_weights(network: Network, features: np.ndarray) -> Network:
    """Make the sum of the word weights a term of a network that was trained together with them.

    features: float32 [m, f], with the trained word weights.
    """
    fresh = init_network(features)
    columns = [FEATURES.index(name) for name in WORD_WEIGHTS]
    hidden, linear = network.hidden.copy(), network.linear.copy()
    hidden[columns], linear[columns] = 0, 0
    if fresh.scale[columns[0]]:
        linear[columns[0]] = 1 / fresh.scale[columns[0]]
    return fresh._replace(hidden=hidden, bias=network.bias, output=network.output, linear=linear)


@functools.cache  # an argument of `_step`, so that folds of as many steps are compiled once
def _make_optimizer(steps: int) -> optax.GradientTransformation:
    rate = optax.cosine_decay_schedule(_LEARNING_RATE, steps)
    return optax.adamw(rate, weight_decay=_WEIGHT_DECAY)


@functools.partial(jax.jit, static_argnums=0)
def _step(optimizer, params, state, batch, key):  # type: ignore[no-untyped-def]
    """Update the parameters by one batch."""
    gradient = jax.grad(_loss)(params, *batch, key)
    updates, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), state


def _loss(params, inputs, relevant, known, words, key):  # type: ignore[no-untyped-def]
    """Compute the mean loss of b queries of up to c hits: inputs float32 [b, c, f], standardized.

    `relevant` and `known` are bool [b, c]; `words`, int32 [b, c, MOST], as `rows` above.
    """
    units = jax.nn.relu(inputs @ params["hidden"] + params["bias"][None, None])
    # One mask for all hits of a query: random numbers took a third of the time.
    kept = jax.random.bernoulli(key, 1 - _DROPOUT, (len(units), 1, HIDDEN))
    units = jnp.where(kept, units / (1 - _DROPOUT), 0)
    scores = inputs @ params["linear"] + units @ params["output"]
    if words is not None:
        weights = params["word_weights"][jnp.maximum(words, 0)]
        scores += jnp.where(words >= 0, weights, 0).sum(axis=2)
    logs = jax.nn.log_softmax(jnp.where(known, scores, -jnp.inf), axis=1)
    own = jnp.where(relevant, logs, 0).sum(axis=1) / relevant.sum(axis=1)
    every = jax.nn.logsumexp(jnp.where(relevant, logs, -jnp.inf), axis=1)
    return -(own + every).mean() / 2
