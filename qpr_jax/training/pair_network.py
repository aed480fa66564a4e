"""Train the network of a words model: lists of hits are sorted, and pairs told apart."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.optimize import minimize

from qpr_jax.pair_model.features import zero_weights
from qpr_jax.pair_model.fitting import logistic
from qpr_jax.pair_model.words import FEATURES, WORD_WEIGHTS, Network
from qpr_jax.training.pair_examples import UNLABELED, Examples

HIDDEN = 128
EARLY_EPOCHS, EPOCHS = 3, 40
_BATCH = 64  # queries
_LEARNING_RATE, _WEIGHT_DECAY, _DROPOUT = 3e-3, 1e-2, 0.3
_PAIRS = 0.3  # weight of the loss of pairs; that of lists is 1
_CONTRAST = 0.007  # weight of a contrast among the hits of a query
_TRAINED = ("hidden", "bias", "output", "linear", "shift")
_WORDS = "words"


def init_network(features: np.ndarray, seed: int = 0) -> Network:
    """Draw random weights; standardize by features, float32 [P, FEATURES]."""
    rng, spread = np.random.default_rng(seed), features.std(axis=0, dtype=np.float64)
    # A constant feature gets the scale 0, so that it is ignored on other data, too.
    scale = np.where(spread > 1e-6, 1 / np.maximum(spread, 1e-6), 0)
    hidden = rng.normal(size=(FEATURES, HIDDEN)) * np.sqrt(2 / FEATURES)
    output = rng.normal(size=HIDDEN) * 0.1 * np.sqrt(2 / HIDDEN)
    mean, linear = features.mean(axis=0, dtype=np.float64), np.zeros(FEATURES)
    arrays = (mean, scale, hidden, np.zeros(HIDDEN), output, linear, np.zeros(1))
    return Network(*(array.astype(np.float32) for array in arrays))


def train_early(
    taught: Examples, lists: Examples, *, trained: bool, seed: int
) -> tuple[Network, np.ndarray]:
    """Train first weights of a network, and weights of words, on lists of training questions.

    lists: of validation questions. Their mean distance replaces those of an encoder that was
      `trained` on the training questions, which are too good. They standardize the network.
    """
    if trained:
        taught.features[:, :2] = lists.features[:, :2].mean(axis=0)
    start = init_network(lists.features, seed)
    early, weights = _train(start, taught, None, epochs=EARLY_EPOCHS, seed=seed)
    # The sum of the weights of words was added to the score; now it is a feature.
    fresh = init_network(lists.with_words(weights).features)
    hidden, linear = early.hidden.copy(), early.linear.copy()
    hidden[WORD_WEIGHTS], linear[WORD_WEIGHTS] = 0, 0
    if fresh.scale[WORD_WEIGHTS]:
        linear[WORD_WEIGHTS] = 1 / fresh.scale[WORD_WEIGHTS]
    early = early._replace(mean=fresh.mean, scale=fresh.scale, hidden=hidden, linear=linear)
    return early, weights


def train_network(
    start: Network, lists: Examples, labeled: Examples, others: Examples, *, seed: int
) -> Network:
    """Train a network to sort lists and to tell pairs apart; its sigmoid is a probability."""
    contrast = (others.pairs[:, 0] == others.pairs[:, 1]) & np.isin(others.pairs[:, 0], lists.pairs)
    among = others.select(contrast)
    among = among._replace(weights=np.full_like(among.weights, _CONTRAST))
    pairs = labeled.joined(others._replace(weights=np.full_like(others.weights, UNLABELED)))
    network, _ = _train(start, lists.joined(among), pairs, epochs=EPOCHS, seed=seed)
    logits = network.logits(labeled.features)

    def loss(found: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = found[0] * logits + found[1]
        slopes = labeled.weights * (logistic(scaled) - labeled.labels)
        value = labeled.weights @ (np.logaddexp(0, scaled) - labeled.labels * scaled)
        return float(value), np.array([slopes @ logits, slopes.sum()])

    bounds = [(1e-3, None), (None, None)]
    found = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=bounds).x
    slope, shift = found.astype(np.float32)
    return network._replace(
        output=slope * network.output,
        linear=slope * network.linear,
        shift=slope * network.shift + shift,
    )


def _train(
    start: Network, lists: Examples, pairs: Examples | None, *, epochs: int, seed: int
) -> tuple[Network, np.ndarray]:
    """Train a network by lists and pairs; without pairs, weights of words by lists, too.

    With p the softmax over the hits of a query, the loss of the query is the mean of two terms:
    -log of the sum of p over the relevant hits, and the mean of -log p over them. Queries without a
    relevant hit are left out. The weight of a hit is a factor in the softmax. The mean logistic
    loss of pairs is added.

    Returns the network, with the mean and scale of `start`, and the weights of words.
    """
    starts, counts = lists.starts, np.diff(lists.starts)
    useful = np.flatnonzero(np.add.reduceat(lists.labels, starts[:-1], dtype=int))
    params = {name: getattr(start, name) for name in _TRAINED}
    if pairs is None:
        params[_WORDS] = zero_weights()
    if not len(useful):
        return start, params.get(_WORDS, zero_weights())
    hits, factors = start.standardize(lists.features), np.log(lists.weights)
    places, batches = np.arange(counts.max()), -(-len(useful) // _BATCH)
    optimizer = _make_optimizer(epochs * batches)
    state, key = optimizer.init(params), jax.random.key(seed)
    for epoch in range(epochs):
        rng = np.random.default_rng([seed, epoch])
        # The last batch is filled up with the first queries of the order.
        order = np.resize(rng.permutation(useful), (batches, _BATCH))
        parts = [None] * batches if pairs is None else _divide(pairs, start, batches, rng)
        for queries, part in zip(order, parts, strict=True):
            inside = places < counts[queries, None]
            rows = np.where(inside, starts[queries, None] + places, 0)
            among = (
                hits[rows],
                inside & lists.labels[rows],
                np.where(inside, factors[rows], -np.inf),
            )
            words = lists.words[rows] if pairs is None else None
            params, state, key = _step(optimizer, params, state, among, words, part, key)
    found = {name: np.array(array) for name, array in params.items()}
    words = found.pop(_WORDS, zero_weights())
    return start._replace(**found), words


def _divide(
    pairs: Examples, start: Network, batches: int, rng: np.random.Generator
) -> list[tuple[np.ndarray, ...]]:
    """Divide pairs at random among batches: inputs, labels and weights, [_BATCH, c] each."""
    order = rng.permutation(len(pairs.labels))
    size = -(-len(order) // (batches * _BATCH))
    weights = pairs.weights / pairs.weights.mean()
    return [
        (start.standardize(pairs.features[rows]), pairs.labels[rows], weights[rows])
        for rows in np.resize(order, (batches, _BATCH, size))
    ]


@functools.cache  # an argument of `_step`, so that folds of as many steps are compiled once
def _make_optimizer(steps: int) -> optax.GradientTransformation:
    rate = optax.cosine_decay_schedule(_LEARNING_RATE, steps)
    return optax.adamw(rate, weight_decay=_WEIGHT_DECAY)


@functools.partial(jax.jit, static_argnums=0)
def _step(optimizer, params, state, hits, words, pairs, key):  # type: ignore[no-untyped-def]
    """Update the parameters and the key by one batch; a call to split it takes long."""
    key, dropout = jax.random.split(key)
    gradient = jax.grad(_loss)(params, *hits, words, pairs, dropout)
    updates, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, key


def _loss(params, inputs, relevant, factors, words, pairs, key):  # type: ignore[no-untyped-def]
    """Compute the mean loss of b queries of up to c hits: inputs float32 [b, c, FEATURES].

    `relevant` is bool [b, c]; `factors`, their logarithms, -inf for no hit; `words`, int32
    [b, c, MOST], as of `Examples`; `pairs`, a batch of `_divide`.
    """
    scores = _score(params, inputs, key) + factors
    if words is not None:
        weights = params[_WORDS][jnp.maximum(words, 0)]
        scores += jnp.where(words >= 0, weights, 0).sum(axis=2)
    logs = jax.nn.log_softmax(scores, axis=1)
    mean_log = jnp.where(relevant, logs, 0).sum(axis=1) / relevant.sum(axis=1)
    whole = jax.nn.logsumexp(jnp.where(relevant, logs, -jnp.inf), axis=1)
    loss = -(mean_log + whole).mean() / 2
    if pairs is not None:
        features, labels, weights = pairs
        logits = _score(params, features, key) + params["shift"][None]
        loss += _PAIRS * (weights * (jnp.logaddexp(0, logits) - labels * logits)).mean()
    return loss


def _score(params, inputs, key):  # type: ignore[no-untyped-def]
    """Compute scores, float32 [b, c], of inputs float32 [b, c, FEATURES]."""
    units = jax.nn.relu(inputs @ params["hidden"] + params["bias"][None, None])
    # One mask for all hits of a query: random numbers took a third of the time.
    kept = jax.random.bernoulli(key, 1 - _DROPOUT, (len(units), 1, HIDDEN))
    units = jnp.where(kept, units / (1 - _DROPOUT), 0)
    return inputs @ params["linear"] + units @ params["output"]
