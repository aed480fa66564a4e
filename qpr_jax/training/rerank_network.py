"""Train the network of the re-ranker, and word weights with it: a softmax over hits of a query.

This uses loops of one thread instead of JAX: XLA divides a product of a few thousand rows among
threads, so the last bits would depend on the number of threads.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qpr_jax.loops import compile_loop
from qpr_jax.reranking.base import owners_of, starts_of
from qpr_jax.reranking.network import Network, standardize
from qpr_jax.reranking.word_weights import zero_weights
from qpr_jax.training.boosting import Lists

HIDDEN = 64
_BATCH = 64  # queries
_LEARNING_RATE, _WEIGHT_DECAY, _DROPOUT = 3e-3, 1e-2, 0.2
_DECAYS = (0.9, 0.999)  # beta1 and beta2 of Adam
_TRAINED = ("hidden", "bias", "output", "linear")
_WORDS = "word_weights"


class WordRows(NamedTuple):
    """The word weights of m hits, of `word_weights.weight_rows`: int32 [n], int64 [m + 1]."""

    rows: np.ndarray
    starts: np.ndarray


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
    return Network(*(a.astype(np.float32) for a in arrays))


def train_network(
    start: Network, lists: Lists, *, epochs: int, seed: int = 0, words: WordRows | None = None
) -> tuple[Network, np.ndarray]:
    """Train a network and, if `words` are given, word weights.

    The score of a hit is the output of the network plus the sum of its word weights. With p the
    softmax over the hits of a query, the loss of the query is the mean of two terms: -log of the
    sum of p over the relevant hits, and the mean of -log p over them. Queries without a relevant
    hit are left out.

    Args:
      start: the initial network; its mean and scale are kept.
      lists: the hits.
      epochs: passes over the queries.
      seed: seed of the order of queries and of dropout.
      words: the word weights of each hit; None to leave them 0.

    Returns:
      The network, and the word weights, float32 [2 ** BITS].
    """
    inputs = standardize(start, lists.features).astype(np.float32)
    relevant = np.bincount(owners_of(lists.starts), lists.labels, len(lists.starts) - 1)
    useful = np.flatnonzero(relevant)
    batches = -(-len(useful) // _BATCH)
    trained = {name: getattr(start, name).copy() for name in _TRAINED}
    table = zero_weights()
    adam = Adam(trained | ({_WORDS: table} if words else {}), steps=epochs * batches)
    for epoch in range(epochs):
        order = useful[np.random.default_rng([seed, epoch]).permutation(len(useful))]
        dropout = np.random.default_rng([seed, epoch, 1])
        # The last batch is filled up with the first queries of the order.
        for queries in np.resize(order, (batches, _BATCH)) if batches else ():
            hits, starts = _members(lists.starts, queries)
            kept = dropout.random((len(hits), HIDDEN), np.float32) >= _DROPOUT
            sums = np.zeros(len(hits), np.float32)
            if words:
                at, bounds = _members(words.starts, hits)
                rows, owners = words.rows[at], owners_of(bounds)
                sums += np.bincount(owners, table[rows], len(hits)).astype(np.float32)
            batch = (inputs[hits], lists.labels[hits] > 0, starts, kept, sums)
            gradients = {name: np.zeros_like(array) for name, array in trained.items()}
            of_scores = np.empty(len(hits), np.float32)
            _add_gradients(tuple(trained.values()), batch, tuple(gradients.values()), of_scores)
            if words:
                found = np.bincount(rows, of_scores[owners], len(table))
                gradients[_WORDS] = found.astype(np.float32)
            adam.step(gradients)
    return start._replace(**trained), table


def _members(starts: np.ndarray, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the members of some lists, one list after the other, and where each list starts."""
    counts = starts[lists + 1] - starts[lists]
    bounds = starts_of(counts)
    return np.arange(bounds[-1]) + np.repeat(starts[lists] - bounds[:-1], counts), bounds


class Adam:
    """AdamW with cosine decay of the learning rate to 0; changes the weights in place."""

    def __init__(self, weights: dict[str, np.ndarray], steps: int) -> None:
        self._weights, self._steps, self._step = weights, steps, 0
        self._means = {name: np.zeros_like(array) for name, array in weights.items()}
        self._squares = {name: np.zeros_like(array) for name, array in weights.items()}

    def step(self, gradients: dict[str, np.ndarray]) -> None:
        """Apply one update."""
        rate = _LEARNING_RATE * (1 + math.cos(math.pi * self._step / self._steps)) / 2
        self._step += 1
        for name, array in self._weights.items():
            mean, square, gradient = self._means[name], self._squares[name], gradients[name]
            mean += np.float32(1 - _DECAYS[0]) * (gradient - mean)
            square += np.float32(1 - _DECAYS[1]) * (gradient * gradient - square)
            first = mean / np.float32(1 - _DECAYS[0] ** self._step)
            second = square / np.float32(1 - _DECAYS[1] ** self._step)
            change = first / (np.sqrt(second) + np.float32(1e-8))
            array -= np.float32(rate) * (change + np.float32(_WEIGHT_DECAY) * array)


@compile_loop(fastmath={"contract"})
def _add_gradients(weights, batch, gradients, of_scores):  # type: ignore[no-untyped-def]
    """Add the gradient of the mean loss of a batch; one thread, so that its order is fixed.

    Args:
      weights, gradients: hidden, bias, output, linear, each as in `Network`.
      batch: z, float32 [m, f]; relevant, bool [m]; starts, int64 [q + 1]; the units that dropout
        keeps, bool [m, h]; a term of each score, float32 [m].
      of_scores: float32 [m], gets the gradient of the loss by each score.
    """
    inputs, relevant, starts, kept, sums = batch
    hidden, bias, output, linear = weights
    to_hidden, to_bias, to_output, to_linear = gradients
    units, back = np.empty((len(inputs), len(bias)), np.float32), np.empty(len(bias), np.float32)
    scale = np.float32(1 / (1 - _DROPOUT))
    for hit in range(len(inputs)):
        units[hit] = bias
        score = sums[hit]
        for f in range(len(linear)):
            z = inputs[hit, f]
            score += linear[f] * z
            for i in range(len(bias)):
                units[hit, i] += z * hidden[f, i]
        for i in range(len(bias)):
            alive = kept[hit, i] and units[hit, i] > 0
            units[hit, i] = units[hit, i] * scale if alive else np.float32(0)
            score += output[i] * units[hit, i]
        of_scores[hit] = score
    _differentiate(relevant, starts, of_scores)
    for hit in range(len(inputs)):
        gradient = of_scores[hit]
        for i in range(len(bias)):
            to_output[i] += gradient * units[hit, i]
            back[i] = gradient * output[i] * scale if units[hit, i] > 0 else np.float32(0)
            to_bias[i] += back[i]
        for f in range(len(linear)):
            z = inputs[hit, f]
            to_linear[f] += gradient * z
            for i in range(len(bias)):
                to_hidden[f, i] += z * back[i]


@compile_loop()
def _differentiate(relevant, starts, scores):  # type: ignore[no-untyped-def]
    """Replace the scores of hits by the gradient of the mean loss of their queries."""
    queries = len(starts) - 1
    for query in range(queries):
        first, stop = starts[query], starts[query + 1]
        best, whole, part, count = np.float32(-np.inf), np.float32(0), np.float32(0), 0
        for hit in range(first, stop):
            best = max(best, scores[hit])
        for hit in range(first, stop):
            scores[hit] = np.exp(scores[hit] - best)
            whole += scores[hit]
            if relevant[hit]:
                part += scores[hit]
                count += 1
        for hit in range(first, stop):
            gradient = 2 * scores[hit] / whole
            if relevant[hit]:
                gradient -= scores[hit] / max(part, np.float32(1e-30)) + np.float32(1) / count
            scores[hit] = gradient / (2 * queries)
