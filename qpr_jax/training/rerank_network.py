"""Train the network of the re-ranker: a softmax over the hits of each query.

This uses loops of one thread instead of JAX: XLA divides a product of a few thousand rows among
threads, so the last bits would depend on the number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from qpr_jax.loops import compile_loop
from qpr_jax.reranking.network import Network, standardize

HIDDEN = 64
_BATCH = 64  # queries
_LEARNING_RATE, _WEIGHT_DECAY, _DROPOUT = 3e-3, 1e-2, 0.2
_DECAYS = (0.9, 0.999)  # beta1 and beta2 of Adam
_TRAINED = ("hidden", "bias", "output", "linear")


def init_network(features: np.ndarray, valid: np.ndarray, seed: int = 0) -> Network:
    """Draw random weights; standardize by the features [q, k, f] of the valid hits, [q, k]."""
    rows = features[valid].astype(np.float64)
    rng, width = np.random.default_rng(seed), features.shape[-1]
    # A constant feature gets the scale 0, so that it is ignored on other data, too.
    spread = rows.std(axis=0)
    scale = np.where(spread > 1e-6, 1 / np.maximum(spread, 1e-6), 0)
    hidden = rng.normal(size=(width, HIDDEN)) * np.sqrt(2 / width)
    output = rng.normal(size=HIDDEN) * 0.1 * np.sqrt(2 / HIDDEN)
    arrays = (rows.mean(axis=0), scale, hidden, np.zeros(HIDDEN), output, np.zeros(width))
    return Network(*(a.astype(np.float32) for a in arrays))


def train_network(
    start: Network,
    features: np.ndarray,
    relevant: np.ndarray,
    valid: np.ndarray,
    *,
    epochs: int,
    seed: int = 0,
) -> Network:
    """Train on padded lists of k hits.

    With p the softmax over the hits of a query, its loss is the mean of two terms: -log of the sum
    of p over the relevant hits, and the mean of -log p over them. Queries without a relevant hit
    are left out.

    Args:
      start: the initial network; its mean and scale are kept.
      features: float32 [q, k, f].
      relevant: bool [q, k].
      valid: bool [q, k], False for padding.
      epochs: passes over the queries.
      seed: seed of the order of queries and of dropout.
    """
    useful = (relevant & valid).any(axis=1)
    inputs = standardize(start, features[useful]).astype(np.float32)
    relevant, valid = relevant[useful] & valid[useful], valid[useful]
    batches = -(-len(inputs) // _BATCH)
    weights = {name: getattr(start, name).copy() for name in _TRAINED}
    adam = Adam(weights, steps=epochs * batches)
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(inputs))
        dropout = np.random.default_rng([seed, epoch, 1])
        # The last batch is filled up with the first queries of the order.
        for rows in np.resize(order, (batches, _BATCH)) if batches else ():
            shape = (*inputs.shape[:2], len(start.bias))
            kept = dropout.random((_BATCH, *shape[1:]), np.float32) >= _DROPOUT
            gradients = {name: np.zeros_like(array) for name, array in weights.items()}
            _add_gradients(
                *weights.values(),
                inputs[rows],
                relevant[rows],
                valid[rows],
                kept,
                *gradients.values(),
            )
            adam.step(weights, gradients)
    return start._replace(**weights)


class Adam:
    """AdamW with cosine decay of the learning rate to 0; changes the weights in place."""

    def __init__(self, weights: dict[str, np.ndarray], steps: int) -> None:
        self._steps, self._step = steps, 0
        self._means = {name: np.zeros_like(array) for name, array in weights.items()}
        self._squares = {name: np.zeros_like(array) for name, array in weights.items()}

    def step(self, weights: dict[str, np.ndarray], gradients: dict[str, np.ndarray]) -> None:
        """Apply one update by the gradients `gradients`."""
        rate = _LEARNING_RATE * (1 + math.cos(math.pi * self._step / self._steps)) / 2
        self._step += 1
        for name, gradient in gradients.items():
            mean, square, array = self._means[name], self._squares[name], weights[name]
            mean += np.float32(1 - _DECAYS[0]) * (gradient - mean)
            square += np.float32(1 - _DECAYS[1]) * (gradient * gradient - square)
            first = mean / np.float32(1 - _DECAYS[0] ** self._step)
            second = square / np.float32(1 - _DECAYS[1] ** self._step)
            change = first / (np.sqrt(second) + np.float32(1e-8))
            array -= np.float32(rate) * (change + np.float32(_WEIGHT_DECAY) * array)


@compile_loop(fastmath={"contract"})
def _add_gradients(  # type: ignore[no-untyped-def]
    hidden,
    bias,
    output,
    linear,
    inputs,
    relevant,
    valid,
    kept,
    hidden_gradient,
    bias_gradient,
    output_gradient,
    linear_gradient,
):
    """Add the gradient of the mean loss of a batch; one thread, so that its order is fixed."""
    queries, hits, width = inputs.shape
    units = len(bias)
    scores = np.empty(hits, np.float32)
    before = np.empty((hits, units), np.float32)
    back = np.empty(units, np.float32)
    scale = np.float32(1 / (1 - _DROPOUT))
    for query in range(queries):
        best = np.float32(-np.inf)
        for hit in range(hits):
            if not valid[query, hit]:
                continue
            total = before[hit]
            for i in range(units):
                total[i] = bias[i]
            score = np.float32(0)
            for f in range(width):
                z = inputs[query, hit, f]
                score += linear[f] * z
                for i in range(units):
                    total[i] += z * hidden[f, i]
            for i in range(units):
                if kept[query, hit, i] and total[i] > 0:
                    score += output[i] * total[i] * scale
            scores[hit] = score
            best = max(best, score)
        whole, part, count = np.float32(0), np.float32(0), 0
        for hit in range(hits):
            if valid[query, hit]:
                scores[hit] = np.exp(scores[hit] - best)
                whole += scores[hit]
                if relevant[query, hit]:
                    part += scores[hit]
                    count += 1
        for hit in range(hits):
            if not valid[query, hit]:
                continue
            gradient = 2 * scores[hit] / whole
            if relevant[query, hit]:
                gradient -= scores[hit] / max(part, np.float32(1e-30)) + np.float32(1) / count
            gradient = np.float32(gradient / (2 * queries))
            for i in range(units):
                alive = kept[query, hit, i] and before[hit, i] > 0
                value = gradient * scale if alive else np.float32(0)
                output_gradient[i] += value * before[hit, i]
                back[i] = value * output[i]
                bias_gradient[i] += back[i]
            for f in range(width):
                z = inputs[query, hit, f]
                linear_gradient[f] += gradient * z
                for i in range(units):
                    hidden_gradient[f, i] += z * back[i]
