"""Losses of the literature that hold out against false negatives, registered for `loss.names`.

    import examples.losses  # "multi_positive", "debiased", "sigmoid", "guided", "teacher_prior"

A false negative is a candidate that means the same as the query and is not known to.
`python -m experiments.noise` compares these losses with those of the package. For their arguments
see `qpr_jax.losses`; `teacher` is the teacher's vectors of the queries and of the candidates.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

from qpr_jax import register_loss
from qpr_jax.arrays import unit_vectors
from qpr_jax.losses import is_negative, squared_distances

Array = jax.Array


def multi_positive_loss(
    queries: Array,
    candidates: Array,
    positives: Array,
    clusters: Array | None = None,
    *,
    smoothing: float = 0.3,
) -> Array:
    """SDML whose targets share 1 - smoothing among all candidates of the query's cluster.

    Source:
      Khosla et al. (2020), "Supervised Contrastive Learning", equation (2), for the targets.
    """
    logs = jax.nn.log_softmax(-squared_distances(queries, candidates), axis=1)
    positive = ~is_negative(positives, clusters, len(candidates))
    targets = (1 - smoothing) * positive / positive.sum(axis=1, keepdims=True)
    targets += smoothing / len(candidates)
    return (xlogy(targets, targets) - targets * logs).sum(axis=1)


def debiased_loss(
    queries: Array,
    candidates: Array,
    positives: Array,
    clusters: Array | None = None,
    *,
    rate: float = 0.001,
    similarity_scale: float = 20.0,
) -> Array:
    """`ranking_loss` without the share of the negatives that are expected to be false.

    rate: the share of random candidates that mean the same as a query.

    Source:
      Chuang et al. (2020), "Debiased Contrastive Learning", equations (7) and (8).
    """
    positive, others = _cosines(queries, candidates, positives)
    negative = is_negative(positives, clusters, len(candidates))
    count = negative.sum(axis=1)
    powers = jnp.where(negative, jnp.exp(similarity_scale * others), 0)
    power = jnp.exp(similarity_scale * positive)
    mean = (powers.sum(axis=1) / jnp.maximum(count, 1) - rate * power) / (1 - rate)
    mean = jnp.maximum(mean, jnp.exp(-similarity_scale))
    return jnp.log1p(count * mean / power)


def sigmoid_loss(
    queries: Array,
    candidates: Array,
    positives: Array,
    clusters: Array | None = None,
    *,
    bias: float = -10.0,
    similarity_scale: float = 10.0,
) -> Array:
    """The sum over the candidates of the logistic loss of "means the same".

    Source:
      Zhai et al. (2023), "Sigmoid Loss for Language Image Pre-Training", section 3.2; scale and
      bias are its initial values, and constants here.
    """
    positive, others = _cosines(queries, candidates, positives)
    negative = is_negative(positives, clusters, len(candidates))
    rest = jnp.where(negative, jax.nn.softplus(similarity_scale * others + bias), 0)
    return jax.nn.softplus(-similarity_scale * positive - bias) + rest.sum(axis=1)


def guided_loss(
    queries: Array,
    candidates: Array,
    positives: Array,
    clusters: Array | None = None,
    *,
    teacher: tuple[Array, Array],
    similarity_scale: float = 20.0,
) -> Array:
    """`ranking_loss` without candidates that the teacher finds nearer than the query's own.

    Source:
      Solatorio (2024), "GISTEmbed", section 3.2, with the similarities of queries and candidates.
    """
    positive, others = _cosines(queries, candidates, positives)
    taught, similarities = _cosines(*teacher, positives)
    kept = is_negative(positives, clusters, len(candidates)) & (similarities <= taught[:, None])
    logits = jnp.where(kept, similarity_scale * others, -jnp.inf)
    logits = jnp.column_stack([similarity_scale * positive, logits])
    return -jax.nn.log_softmax(logits, axis=1)[:, 0]


def teacher_prior_loss(
    queries: Array,
    candidates: Array,
    positives: Array,
    clusters: Array | None = None,
    *,
    teacher: tuple[Array, Array],
    smoothing: float = 0.3,
    temperature: float = 0.05,
) -> Array:
    """SDML that spreads the smoothing by the teacher's similarities instead of evenly.

    temperature: of the softmax of the teacher's cosines over the negatives.
    """
    paired = ~is_negative(positives, None, len(candidates))
    negative = is_negative(positives, clusters, len(candidates))
    seen = paired | negative
    logits = jnp.where(seen, -squared_distances(queries, candidates), -jnp.inf)
    _, similarities = _cosines(*teacher, positives)
    spread = jax.nn.softmax(similarities / temperature, axis=1, where=negative)
    targets = (1 - smoothing) * paired + smoothing * spread
    logs = jnp.where(seen, jax.nn.log_softmax(logits, axis=1), 0)
    return (xlogy(targets, targets) - targets * logs).sum(axis=1)


def _cosines(queries: Array, candidates: Array, positives: Array) -> tuple[Array, Array]:
    """Cosines with the positive [n] and with all candidates [n, m]."""
    rows, columns = unit_vectors(queries), unit_vectors(candidates)
    return (rows * columns[positives]).sum(axis=1), rows @ columns.T


register_loss("multi_positive", multi_positive_loss)
register_loss("debiased", debiased_loss)
register_loss("sigmoid", sigmoid_loss)
register_loss("guided", guided_loss)
register_loss("teacher_prior", teacher_prior_loss)
