"""Smoothed deep metric learning: a softmax over a batch's distances, with smoothed targets."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.losses.distances import (
    DISTANCES,
    check_batch,
    check_choice,
    from_squared,
    gather,
    gather_clusters,
    left_out,
    mean_vector,
    own_rows,
    products,
    squared_distances,
)

PRIORS = ("uniform", "distance")


def sdml_loss(
    queries: jax.Array,
    candidates: jax.Array,
    *,
    smoothing: float = 0.3,
    distance: str = "ssd",
    prior: str = "uniform",
    temperature: float = 1.0,
    clusters: jax.Array | None = None,
    symmetric: bool = False,
    axis_name: Hashable | None = None,
    precision: lax.PrecisionLike = lax.Precision.HIGHEST,
) -> jax.Array:
    """Mean over the batch of the KL divergence from the smoothed targets to the softmax of -D.

    Row i of the batch is a pair: `candidates[i]` is a paraphrase of `queries[i]`, the other
    candidates are taken for non-paraphrases. With D_ij the distance of query i and candidate j,
    and N candidates in all, the prediction is p_ij = softmax_j(-D_ij) and the target
    t_ij = (1 - smoothing) [i = j] + smoothing q_ij, with q the prior.

    Args:
      queries: floating [n, d].
      candidates: floating [m, d], m >= n; those from n on are negatives of every query.
      smoothing: the mass spread as the prior says, 0 to 1; 0 is plain cross-entropy.
      distance: "ssd", the squared Euclidean one, or "euc", its root.
      prior: "uniform", 1/N on every candidate, the own one too, or "distance", softmax of
        -D / temperature over the others, taken as a constant (over the own, if it has no others).
      temperature: of the distance prior, above 0.
      clusters: integer [m], or [n] where the rest has none: the cluster of each candidate and its
        query, -1 for none. Other candidates of a row's cluster are left out of that row's
        prediction, prior and N.
      symmetric: the mean of this loss and that of the n paired candidates against all queries.
      axis_name: the mapped axis (of `jax.shard_map`, say) that the batch is split over. The
        candidates of all devices are then gathered, N and q are of the global batch, and the
        value is the same on every device. `jax.grad` of the mapped function is the gradient of
        the one-device loss. A gradient taken inside an unchecked map (`check_vma=False`) comes
        out as many times too large as there are devices: take it outside, or leave the check on.
      precision: of the matrix products. Anything below the default full float32 must be measured
        first: it can undo the centring.

    Returns:
      float32 scalar, at least 0 to rounding.

    Raises:
      ValueError: an argument is of another shape, range or name than said above.

    Example:
      >>> x = jnp.eye(3)
      >>> float(sdml_loss(x, x, smoothing=0.0))  # log(1 + 2 exp(-2))
      0.23954...

    Source: Bonadiman, Kumar and Mittal (2019), equations (3) and (4), Figure 2.
    """
    check_batch(queries, candidates, clusters)
    check_choice("distance", distance, DISTANCES)
    check_choice("prior", prior, PRIORS)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"expected `smoothing` from 0 to 1, got {smoothing}")
    if not temperature > 0:
        raise ValueError(f"expected `temperature` above 0, got {temperature}")

    n, m = queries.shape[0], candidates.shape[0]
    queries = queries.astype(jnp.float32)
    candidates = candidates.astype(jnp.float32)
    one_way = functools.partial(
        _one_way,
        own=own_rows(n, axis_name),
        clusters=gather_clusters(clusters, n, m, axis_name),
        smoothing=smoothing,
        distance=distance,
        prior=prior,
        temperature=temperature,
        precision=precision,
    )
    loss = one_way(queries, gather(candidates, n, axis_name))
    if symmetric:
        loss = (loss + one_way(candidates[:n], gather(queries, n, axis_name))) / 2
    return loss if axis_name is None else lax.pmean(loss, axis_name)


def _one_way(
    anchors: jax.Array,
    candidates: jax.Array,
    *,
    own: jax.Array,
    clusters: jax.Array | None,
    smoothing: float,
    distance: str,
    prior: str,
    temperature: float,
    precision: lax.PrecisionLike,
) -> jax.Array:
    """Mean divergence of the anchors' rows [n, d] against the candidates of all devices [N, d]."""
    if distance == "ssd":
        logits = _ssd_logits(anchors, candidates, precision)
    else:
        logits = -from_squared(squared_distances(anchors, candidates, precision), distance)

    # Cross-entropy with the pair's own candidate set against the others, not against all:
    # 1 - p_ii would be lost to rounding where p_ii is close to 1.
    positive = jnp.take_along_axis(logits, own, axis=1)[:, 0]
    hidden = left_out(own, candidates.shape[0], clusters)
    others = jnp.where(hidden, -jnp.inf, logits)
    cross_entropy = jax.nn.softplus(jax.nn.logsumexp(others, axis=1) - positive)

    if prior == "uniform" and clusters is None:  # then the prior need not be built
        cross_entropy += smoothing * (positive - logits.mean(axis=1))
        return cross_entropy.mean() - _target_entropy(candidates.shape[0], smoothing)

    is_own = own == jnp.arange(candidates.shape[0])[None]
    if prior == "uniform":
        scores, within = jnp.zeros_like(logits), ~hidden | is_own
    else:
        alone = hidden.all(axis=1, keepdims=True)
        scores, within = lax.stop_gradient(logits / temperature), ~hidden | (is_own & alone)
    spread = jax.nn.softmax(scores, axis=1, where=within)
    cross_entropy += smoothing * (positive - (spread * logits).sum(axis=1))
    targets = (1 - smoothing) * is_own + smoothing * spread
    return (cross_entropy - jax.scipy.special.entr(targets).sum(axis=1)).mean()


def _ssd_logits(
    queries: jax.Array, candidates: jax.Array, precision: lax.PrecisionLike
) -> jax.Array:
    """-D_ij of squared distances up to a constant of row i, which no softmax sees, [n, N]."""
    # Distances do not change when one vector is subtracted from all; without it a common offset
    # would drown them when the square is expanded.
    centre = mean_vector(candidates)[None]
    queries, candidates = queries - centre, candidates - centre

    # |x_i|^2 is left out, and the squares are taken relative to their mean, dimension by
    # dimension, so that no large number is rounded.
    squares = candidates**2
    squares -= lax.stop_gradient(squares.mean(axis=0, keepdims=True))
    return 2 * products(queries, candidates, precision) - squares.sum(axis=1)[None]


def _target_entropy(count: int, smoothing: float) -> float:
    """Entropy of a row of targets, in nats: what turns cross-entropy into KL divergence."""
    other = smoothing / count
    own = 1 - smoothing + other
    return -sum(n * t * math.log(t) for n, t in ((1, own), (count - 1, other)) if t > 0)
