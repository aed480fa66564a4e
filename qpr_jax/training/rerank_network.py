"""Train the network of the re-ranker: a softmax over the hits of each query."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpr_jax.reranking.network import Network, standardize

HIDDEN = 64
_BATCH = 64  # queries
_LEARNING_RATE, _WEIGHT_DECAY, _DROPOUT = 3e-3, 1e-2, 0.2


def init_network(features: np.ndarray, valid: np.ndarray, seed: int = 0) -> Network:
    """Random weights, and the mean and spread of features [q, k, f] of the valid hits, [q, k]."""
    rows = features[valid].astype(np.float64)
    rng, width = np.random.default_rng(seed), features.shape[-1]
    # A feature that never differs says nothing, on other data neither.
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
    """Train on lists of k hits, padded.

    The loss of a query is minus the log of the softmax, once of all relevant hits together and
    once of each on average; a query without a relevant hit has none.

    Args:
      start: of `init_network`, or trained on other lists; its mean and scale stay.
      features: float32 [q, k, f].
      relevant: bool [q, k].
      valid: bool [q, k], False for padding.
      epochs: passes over the queries.
      seed: of the order of queries and of dropout.
    """
    import jax
    import jax.numpy as jnp
    import optax

    useful = (relevant & valid).any(axis=1)
    inputs = standardize(start, features[useful]).astype(np.float32)
    relevant, valid = relevant[useful] & valid[useful], valid[useful]
    steps = epochs * -(-len(inputs) // _BATCH)
    schedule = optax.cosine_decay_schedule(_LEARNING_RATE, max(1, steps))
    optimizer = optax.adamw(schedule, weight_decay=_WEIGHT_DECAY)
    weights = {name: jnp.asarray(getattr(start, name)) for name in Network._fields[2:]}

    def loss(weights: Any, z: Any, relevant: Any, valid: Any, key: Any) -> Any:
        units = jax.nn.relu(z @ weights["hidden"] + weights["bias"][None, None])
        kept = jax.random.bernoulli(key, 1 - _DROPOUT, units.shape)
        scores = z @ weights["linear"] + (units * kept / (1 - _DROPOUT)) @ weights["output"]
        logs = jax.nn.log_softmax(jnp.where(valid, scores, -1e9), axis=-1)
        together = jax.nn.logsumexp(jnp.where(relevant, logs, -1e9), axis=-1)
        counts = jnp.maximum(relevant.sum(axis=-1), 1)
        each = jnp.where(relevant, logs, 0).sum(axis=-1) / counts
        return -jnp.where(relevant.any(axis=-1), together + each, 0).mean() / 2

    @jax.jit
    def step(weights: Any, state: Any, batch: Any, key: Any) -> Any:
        gradient = jax.grad(loss)(weights, *batch, key)
        updates, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state

    state, number = optimizer.init(weights), 0
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(inputs))
        # The last batch begins anew with the first queries, so that all have one shape.
        for rows in np.resize(order, (-(-len(order) // _BATCH), _BATCH)) if len(order) else ():
            key = jax.random.fold_in(jax.random.key(seed), number)
            batch = (inputs[rows], relevant[rows], valid[rows])
            weights, state = step(weights, state, batch, key)
            number += 1
    return start._replace(**{name: np.asarray(value) for name, value in weights.items()})
