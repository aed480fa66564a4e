"""Losses of the literature that hold out against false negatives, registered for `loss.names`.

    import examples.losses  # "multi_positive", "debiased", "sigmoid", "guided", "teacher_prior"

A false negative is a candidate that means the same as the query and is not known to.
`python -m experiments.noise` compares these losses with those of the package. For their arguments
see `qpr_jax.losses`; `teacher` is the teacher's vectors of the queries and of the candidates.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

from qpr_jax import LossSpec, register_loss
from qpr_jax.arrays import unit_vectors
from qpr_jax.losses.distances import (
    device_mean,
    non_negatives,
    pair_sides,
    squared_distances,
)

Array = jax.Array
Teacher = tuple[Array, Array]


def multi_positive_loss(
    queries: Array,
    candidates: Array,
    *,
    smoothing: float = 0.3,
    clusters: Array | None = None,
    axis_name: str | None = None,
) -> Array:
    """SDML whose targets share 1 - smoothing among all candidates of the query's cluster.

    Source:
      Khosla et al. (2020), "Supervised Contrastive Learning", equation (2), for the targets.
    """
    (side,) = pair_sides(queries, candidates, clusters, axis_name)
    logs = jax.nn.log_softmax(-squared_distances(side.rows, side.columns), axis=1)
    positive = non_negatives(side.own, len(side.columns), side.clusters)
    targets = (1 - smoothing) * positive / positive.sum(axis=1, keepdims=True)
    targets += smoothing / len(side.columns)
    return device_mean((xlogy(targets, targets) - targets * logs).sum(axis=1).mean(), axis_name)


def debiased_loss(
    queries: Array,
    candidates: Array,
    *,
    rate: float = 0.001,
    similarity_scale: float = 20.0,
    clusters: Array | None = None,
    axis_name: str | None = None,
) -> Array:
    """`ranking_loss` without the share of the negatives that are expected to be false.

    rate: the share of random candidates that mean the same as a query.

    Source:
      Chuang et al. (2020), "Debiased Contrastive Learning", equations (7) and (8).
    """
    positive, others, negative = _cosines(queries, candidates, clusters, axis_name)
    count = negative.sum(axis=1)
    powers = jnp.where(negative, jnp.exp(similarity_scale * others), 0)
    own = jnp.exp(similarity_scale * positive)
    mean = (powers.sum(axis=1) / jnp.maximum(count, 1) - rate * own) / (1 - rate)
    mean = jnp.maximum(mean, jnp.exp(-similarity_scale))
    return device_mean(jnp.log1p(count * mean / own).mean(), axis_name)


def sigmoid_loss(
    queries: Array,
    candidates: Array,
    *,
    bias: float = -10.0,
    similarity_scale: float = 10.0,
    clusters: Array | None = None,
    axis_name: str | None = None,
) -> Array:
    """The sum over the candidates of the logistic loss of "means the same".

    Source:
      Zhai et al. (2023), "Sigmoid Loss for Language Image Pre-Training", section 3.2; scale and
      bias are its initial values, and constants here.
    """
    positive, others, negative = _cosines(queries, candidates, clusters, axis_name)
    own = jax.nn.softplus(-similarity_scale * positive - bias)
    rest = jnp.where(negative, jax.nn.softplus(similarity_scale * others + bias), 0)
    return device_mean((own + rest.sum(axis=1)).mean(), axis_name)


def guided_loss(
    queries: Array,
    candidates: Array,
    *,
    teacher: Teacher,
    similarity_scale: float = 20.0,
    clusters: Array | None = None,
    axis_name: str | None = None,
) -> Array:
    """`ranking_loss` without candidates that the teacher finds nearer than the query's own.

    Source:
      Solatorio (2024), "GISTEmbed", section 3.2, with the similarities of queries and candidates.
    """
    positive, others, negative = _cosines(queries, candidates, clusters, axis_name)
    known, similarities, _ = _cosines(*teacher, None, axis_name)
    kept = negative & (similarities <= known[:, None])
    logits = jnp.where(kept, similarity_scale * others, -jnp.inf)
    logits = jnp.column_stack([similarity_scale * positive, logits])
    return device_mean(-jax.nn.log_softmax(logits, axis=1)[:, 0].mean(), axis_name)


def teacher_prior_loss(
    queries: Array,
    candidates: Array,
    *,
    teacher: Teacher,
    smoothing: float = 0.3,
    temperature: float = 0.05,
    clusters: Array | None = None,
    axis_name: str | None = None,
) -> Array:
    """SDML that spreads the smoothing by the teacher's similarities instead of evenly.

    temperature: of the softmax of the teacher's cosines over the negatives.
    """
    (side,) = pair_sides(queries, candidates, clusters, axis_name)
    own = non_negatives(side.own, len(side.columns), None)
    skipped = non_negatives(side.own, len(side.columns), side.clusters) & ~own
    logits = jnp.where(skipped, -jnp.inf, -squared_distances(side.rows, side.columns))
    _, similarities, _ = _cosines(*teacher, None, axis_name)
    spread = jax.nn.softmax(similarities / temperature, axis=1, where=~own & ~skipped)
    targets = (1 - smoothing) * own + smoothing * spread
    logs = jnp.where(skipped, 0, jax.nn.log_softmax(logits, axis=1))
    return device_mean((xlogy(targets, targets) - targets * logs).sum(axis=1).mean(), axis_name)


def _cosines(
    queries: Array, candidates: Array, clusters: Array | None, axis_name: str | None
) -> tuple[Array, Array, Array]:
    """Cosines with the own candidate [n] and with all [n, N]; which are negatives, bool [n, N]."""
    (side,) = pair_sides(queries, candidates, clusters, axis_name)
    rows, positives, columns = map(unit_vectors, side[:3])
    negative = ~non_negatives(side.own, len(columns), side.clusters)
    return (rows * positives).sum(axis=1), rows @ columns.T, negative


register_loss("multi_positive", LossSpec(multi_positive_loss, "pairs"))
register_loss("debiased", LossSpec(debiased_loss, "pairs"))
register_loss("sigmoid", LossSpec(sigmoid_loss, "pairs"))
register_loss("guided", LossSpec(guided_loss, "pairs"))
register_loss("teacher_prior", LossSpec(teacher_prior_loss, "pairs"))
