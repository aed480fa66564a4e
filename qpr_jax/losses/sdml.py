"""Smoothed deep metric learning: a softmax over a batch's distances, with smoothed targets."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax


def sdml_loss(
    queries: jax.Array,
    candidates: jax.Array,
    *,
    smoothing: float = 0.3,
    axis_name: Hashable | None = None,
    precision: lax.PrecisionLike = lax.Precision.HIGHEST,
) -> jax.Array:
    """Mean over the batch of the KL divergence from the smoothed targets to the softmax of -D.

    Row i of the batch is a pair: `candidates[i]` is a paraphrase of `queries[i]`, the other
    candidates are taken for non-paraphrases. With D_ij the squared Euclidean distance of query i
    and candidate j, and N candidates in all, the prediction is p_ij = softmax_j(-D_ij) and the
    target t_ij = (1 - smoothing) [i = j] + smoothing / N.

    Args:
      queries: floating [n, d].
      candidates: floating [n, d].
      smoothing: the mass spread evenly over all candidates, 0 to 1; 0 is plain cross-entropy.
      axis_name: the mapped axis (of `jax.shard_map`, say) that the batch is split over. The
        candidates of all devices are then gathered, N and smoothing / N are of the global batch,
        and the value is the same on every device. `jax.grad` of the mapped function is the
        gradient of the one-device loss. A gradient taken inside an unchecked map
        (`check_vma=False`) comes out as many times too large as there are devices: take it
        outside, or leave the check on.
      precision: of the one matrix product. Anything below the default full float32 must be
        measured first: it can undo the centring.

    Returns:
      float32 scalar, at least 0 to rounding.

    Raises:
      ValueError: `queries` and `candidates` are not of one [n, d], or `smoothing` is not in [0, 1].

    Example:
      >>> x = jnp.eye(3)
      >>> float(sdml_loss(x, x, smoothing=0.0))  # log(1 + 2 exp(-2))
      0.23954...

    Source: Bonadiman, Kumar and Mittal (2019), equations (3) and (4), Figure 2.
    """
    if queries.ndim != 2 or queries.shape != candidates.shape or 0 in queries.shape:
        raise ValueError(
            "expected `queries` and `candidates` of one non-empty shape [n, d], got "
            f"{queries.shape} and {candidates.shape}; row i of both is a pair"
        )
    if not 0 <= smoothing <= 1:
        raise ValueError(f"expected `smoothing` from 0 to 1, got {smoothing}")

    queries = queries.astype(jnp.float32)
    candidates = candidates.astype(jnp.float32)
    own = jnp.arange(queries.shape[0])[:, None]
    if axis_name is not None:
        own += lax.axis_index(axis_name) * queries.shape[0]
        candidates = lax.all_gather(candidates, axis_name, tiled=True)

    # Distances do not change when one vector is subtracted from all; without it a common offset
    # would drown them when the square is expanded.
    centre = lax.stop_gradient(candidates.mean(axis=0))
    queries, candidates = queries - centre[None], candidates - centre[None]

    # -D_ij up to a constant of row i, which neither the softmax nor the cross-entropy sees:
    # |x_i|^2 is left out, and the squares are taken relative to their mean, dimension by
    # dimension, so that no large number is rounded.
    squares = candidates**2
    squares -= lax.stop_gradient(squares.mean(axis=0, keepdims=True))
    products = _products(queries, candidates, precision)
    logits = 2 * products - squares.sum(axis=1)[None]

    # Cross-entropy with the pair's own candidate set against the others, not against all:
    # 1 - p_ii would be lost to rounding where p_ii is close to 1.
    positive = jnp.take_along_axis(logits, own, axis=1)[:, 0]
    others = jnp.where(own == jnp.arange(candidates.shape[0])[None], -jnp.inf, logits)
    cross_entropy = jax.nn.softplus(jax.nn.logsumexp(others, axis=1) - positive)
    cross_entropy += smoothing * (positive - logits.mean(axis=1))
    loss = cross_entropy.mean() - _target_entropy(candidates.shape[0], smoothing)
    return loss if axis_name is None else lax.pmean(loss, axis_name)


def _products(queries: jax.Array, candidates: jax.Array, precision: lax.PrecisionLike) -> jax.Array:
    """All dot products, [n, m]; short sums, added up, are rounded half as much as long ones."""
    return functools.reduce(
        jnp.add,
        (
            jnp.matmul(queries[:, k : k + 64], candidates[:, k : k + 64].T, precision=precision)
            for k in range(0, queries.shape[1], 64)
        ),
    )


def _target_entropy(count: int, smoothing: float) -> float:
    """Entropy of a row of targets, in nats: what turns cross-entropy into KL divergence."""
    other = smoothing / count
    own = 1 - smoothing + other
    return -sum(n * t * math.log(t) for n, t in ((1, own), (count - 1, other)) if t > 0)
