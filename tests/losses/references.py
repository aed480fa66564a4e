"""Losses as their formulas say, of whole matrices in float64; JAX takes the gradients."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy


def evaluate(formula, x, y, *others, **options):
    """The value of a formula in float64 and its gradients in x and y."""

    def value(x, y):
        return formula(x, y, *others, **options)

    with jax.enable_x64(True):
        sides = (np.asarray(side, np.float64) for side in (x, y))
        found, gradients = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(*sides)
        return float(found), *map(np.asarray, gradients)


def root(squares):
    """The square root, with a slope of 0 at 0."""
    known = squares > 0
    return jnp.where(known, jnp.sqrt(jnp.where(known, squares, 1)), 0)


def unit(rows):
    """Rows at length 1; zeros stay, and have no slope."""
    lengths = root((rows**2).sum(axis=1, keepdims=True))
    return jnp.where(lengths > 0, rows / jnp.where(lengths > 0, lengths, 1), 0)


def cosines(x, y):
    return unit(x) @ unit(y).T


def length_of(differences, distance):
    squares = (differences**2).sum(axis=-1)
    return root(squares) if distance == "euc" else squares


def distances_of(x, y, distance="ssd"):
    return length_of(x[:, None] - y[None], distance)


def negatives_of(count, total, clusters):
    """Which of `total` candidates are negatives of `count` queries: bool [count, total]."""
    mask = ~np.eye(count, total, dtype=bool)
    if clusters is not None:
        known = np.asarray(clusters)[:total]
        own = known[:count, None]
        mask &= (own != known) | (own < 0)
    return mask


def divergence(targets, logits):
    """Mean KL divergence of the softmax from the targets; logits of -inf are left out."""
    logs = jnp.where(jnp.isneginf(logits), 0, jax.nn.log_softmax(logits, axis=1))
    return (xlogy(targets, targets) - targets * logs).sum(axis=1).mean()


def one_way(logits, clusters, smoothing):
    negative, own = negatives_of(*logits.shape, clusters), np.eye(*logits.shape)
    logits = jnp.where(negative | (own > 0), logits, -jnp.inf)
    spread = (negative + own) / (negative + own).sum(axis=1, keepdims=True)
    return divergence((1 - smoothing) * own + smoothing * spread, logits)


def both_ways(logits, clusters, smoothing, symmetric):
    value = one_way(logits, clusters, smoothing)
    if not symmetric:
        return value
    return (value + one_way(logits[:, : len(logits)].T, clusters, smoothing)) / 2


def sdml(x, y, clusters=None, *, smoothing=0.3, distance="ssd", symmetric=False):
    return both_ways(-distances_of(x, y, distance), clusters, smoothing, symmetric)


def ranking(x, y, clusters=None, *, similarity_scale=20.0, smoothing=0.0, symmetric=False):
    return both_ways(similarity_scale * cosines(x, y), clusters, smoothing, symmetric)


def triplet(x, y, clusters=None, *, negatives="hard", margin=0.5, distance="ssd", chosen=None):
    """Equation (2) with the mean over rows; `chosen` are the negatives, else the hard ones."""
    allowed, positives = negatives_of(len(x), len(y), clusters), y[: len(x)]
    if chosen is None:
        closeness = distances_of(positives if negatives == "hard" else x, y)
        chosen = jnp.where(allowed, closeness, jnp.inf).argmin(axis=1)
    near, far = (length_of(x - other, distance) for other in (positives, y[chosen]))
    return jnp.where(allowed.any(axis=1), jnp.maximum(near - far + margin, 0), 0).mean()


def contrastive(left, right, labels, *, margin=0.5):
    return 0.5 * missing_squares(left, right, labels, margin)[0].mean()


def missing_squares(left, right, labels, margin):
    """What is missing to 0, or to the margin, squared; and the distances."""
    distances = 1 - (unit(left) * unit(right)).sum(axis=1)
    same = np.asarray(labels).astype(bool)
    return jnp.where(same, distances, jnp.maximum(0, margin - distances)) ** 2, distances


def online_contrastive(left, right, labels, *, margin=0.5):
    """sentence-transformers' choice: extremes of the other kind, means of the own without two."""
    squares, distances = missing_squares(left, right, labels, margin)
    same = np.asarray(labels).astype(bool)
    apart, together = distances[~same], distances[same]
    far = together.max() if len(together) > 1 else apart.mean() if len(apart) else 0
    near = apart.min() if len(apart) > 1 else together.mean() if len(together) else 0
    return jnp.where(jnp.where(same, distances > near, distances < far), squares, 0).mean()


def distillation(vectors, targets):
    return 0.5 * ((vectors - targets) ** 2).sum(axis=1).mean()


def listwise(queries, candidates, scores):
    squares = ((queries[:, None] - candidates) ** 2).sum(axis=2)
    return divergence(jax.nn.softmax(scores, axis=1), -squares)
