"""Train the network and word weights of the re-ranker: a softmax over the hits of a query."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from qpr_jax.reranking.features import FEATURES, WORD_WEIGHTS, zero_weights
from qpr_jax.reranking.light import Network, standardize
from qpr_jax.training.rerank_data import Examples

HIDDEN = 64
_BATCH = 64  # queries
_LEARNING_RATE, _WEIGHT_DECAY, _DROPOUT = 3e-3, 1e-2, 0.2
_TRAINED = ("hidden", "bias", "output", "linear")
_WORDS = "word_weights"


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

    Args:
      start: the initial network; its mean and scale are kept.
      rows: int32 [m, MOST], of the word weights of each hit, -1 for none; None to leave them 0.

    Returns:
      The network, and the word weights, float32 [2 ** BITS].
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
    table = trained.pop(_WORDS, None)
    return start._replace(**trained), zero_weights() if table is None else table


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
    kept = jax.random.bernoulli(key, 1 - _DROPOUT, units.shape)
    units = jnp.where(kept, units / (1 - _DROPOUT), 0)
    scores = inputs @ params["linear"] + units @ params["output"]
    if words is not None:
        weights = params["word_weights"][jnp.maximum(words, 0)]
        scores += jnp.where(words >= 0, weights, 0).sum(axis=2)
    logs = jax.nn.log_softmax(jnp.where(known, scores, -jnp.inf), axis=1)
    own = jnp.where(relevant, logs, 0).sum(axis=1) / relevant.sum(axis=1)
    every = jax.nn.logsumexp(jnp.where(relevant, logs, -jnp.inf), axis=1)
    return -(own + every).mean() / 2
