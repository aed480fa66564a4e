"""Smoothed deep metric learning: a softmax over a batch's distances, with smoothed targets."""

from __future__ import annotations

import functools
import logging
from collections.abc import Hashable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import entr

from qpr_jax.losses.autodiff_tiles import summed_by_tiles, tile_of
from qpr_jax.losses.choices import PRIORS, SCORES
from qpr_jax.losses.distances import (
    check_batch,
    check_choice,
    from_squared,
    gather,
    gather_clusters,
    left_out,
    mean_vector,
    own_rows,
    paired_squared_distances,
    products,
    squared_distances,
)
from qpr_jax.losses.tiled_softmax import Candidates, Numbers, Pairs, summed_by_hand, target_entropy

log = logging.getLogger(__name__)


def tiled_by_hand(distance: str, prior: str) -> bool:
    """Whether the gradient in tiles is the one written for it, in `tiled_softmax`."""
    return distance in ("ssd", "dot") and prior == "uniform"


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
    tile: int | Literal["auto"] | None = "auto",
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
      distance: "ssd", the squared Euclidean one, "euc", its root, or "dot", minus the dot product
        (for which see `ranking_loss`).
      prior: "uniform", 1/N on every candidate, the own one too, or "distance", softmax of
        -D / temperature over the others, taken as a constant (over the own, if it has no others).
      temperature: of the distance prior, above 0.
      clusters: integer [m], or [n] where the rest has none: the cluster of each candidate and its
        query, -1 for none. Other candidates of a row's cluster are left out of that row's
        prediction, prior and N.
      symmetric: the mean of this loss and that of the n paired candidates against all queries.
      tile: how many anchors' rows of distances are held at a time: memory then grows with
        tile x N and not with n x N, and value and gradient are the same to rounding. None: all at
        once. "auto": by size, and told in the log.
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
    check_choice("distance", distance, SCORES)
    check_choice("prior", prior, PRIORS)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"expected `smoothing` from 0 to 1, got {smoothing}")
    if not temperature > 0:
        raise ValueError(f"expected `temperature` above 0, got {temperature}")

    n, m = queries.shape[0], candidates.shape[0]
    queries = queries.astype(jnp.float32)
    candidates = candidates.astype(jnp.float32)
    own = own_rows(n, axis_name)
    known = gather_clusters(clusters, n, m, axis_name)
    everyone = gather(candidates, n, axis_name)
    by_hand = tiled_by_hand(distance, prior)
    size = tile_of(tile, n, len(everyone), by_hand=by_hand)
    told = f"{size} rows a tile" if size else "all at once"
    log.info("loss: %d x %d distances, %s", n, len(everyone), told)
    pairs, targets = _sides(queries, candidates, everyone, distance)
    if size is not None and by_hand:
        numbers = Numbers(own[:, 0], known)
        how = (smoothing, symmetric, size, axis_name, precision)
        loss = summed_by_hand(pairs, targets, numbers, *how) / (n * (1 + symmetric))
        return loss if axis_name is None else lax.pmean(loss, axis_name)

    divergences = functools.partial(
        _divergences,
        smoothing=smoothing,
        distance=distance,
        prior=prior,
        temperature=temperature,
        precision=precision,
    )
    directions = [(pairs, targets)]
    if symmetric:
        back = Pairs(pairs.candidates, pairs.queries, pairs.candidate_squares, pairs.query_squares)
        of_all = (gather(side, n, axis_name) for side in (pairs.queries, pairs.query_squares))
        directions.append((back, Candidates(*of_all)))
    loss = jnp.zeros(())
    for rows, others in directions:
        of_others = None if known is None else known[: len(others.squares)]
        if size is None:
            loss += divergences(rows, others, own, of_others).mean()
        else:
            summed = summed_by_tiles(divergences, rows, others, own, of_others, size, axis_name)
            loss += summed / n
    loss /= len(directions)
    return loss if axis_name is None else lax.pmean(loss, axis_name)


def _sides(
    queries: jax.Array, candidates: jax.Array, everyone: jax.Array, distance: str
) -> tuple[Pairs, Candidates]:
    """The vectors and their squares. everyone: the candidates of all devices."""
    if distance == "dot":
        # 2 x.y - |y|^2 becomes x.y, to the last bit. Nothing is subtracted: a dot product is from
        # the origin.
        own = candidates[: len(queries)]
        none = [jnp.zeros_like(side[:, 0]) for side in (queries, own, everyone)]
        return Pairs(queries / 2, own, none[0], none[1]), Candidates(everyone, none[2])
    if distance == "ssd":
        # Distances do not change when one vector is subtracted from all; without it a common
        # offset would drown them when the square is expanded. (Euclidean distances of vectors
        # that nearly coincide are taken from the vectors as they are.)
        centre = mean_vector(everyone)[None]
        queries, candidates, everyone = queries - centre, candidates - centre, everyone - centre
    # Squares are relative to a mean, dimension by dimension, that no large number is rounded.
    mean = lax.stop_gradient((everyone**2).mean(axis=0, keepdims=True))
    own = candidates[: len(queries)]
    squares = [(side**2 - mean).sum(axis=1) for side in (queries, own, everyone)]
    return Pairs(queries, own, squares[0], squares[1]), Candidates(everyone, squares[2])


def _divergences(
    pairs: Pairs,
    candidates: Candidates,
    own: jax.Array,
    clusters: jax.Array | None,
    *,
    smoothing: float,
    distance: str,
    prior: str,
    temperature: float,
    precision: lax.PrecisionLike,
) -> jax.Array:
    """The divergence of each query's row against all candidates, [n]."""
    if distance == "euc":
        squared = squared_distances(pairs.queries, candidates.vectors, precision)
        logits = -from_squared(squared, distance)
        own_squared = paired_squared_distances(pairs.queries, pairs.candidates)
        positive = -from_squared(own_squared, distance)
    else:
        # -D_ij, of "ssd" without |x_i|^2, which neither softmax nor cross-entropy sees.
        logits = 2 * products(pairs.queries, candidates.vectors, precision)
        logits -= candidates.squares[None]
        positive = 2 * (pairs.queries * pairs.candidates).sum(axis=1) - pairs.candidate_squares

    # Cross-entropy with the pair's own candidate set against the others, not against all:
    # 1 - p_ii would be lost to rounding where p_ii is close to 1.
    hidden = left_out(own, len(candidates.squares), clusters)
    others = jnp.where(hidden, -jnp.inf, logits)
    cross_entropy = jax.nn.softplus(jax.nn.logsumexp(others, axis=1) - positive)

    if prior == "uniform":
        count = (~hidden).sum(axis=1) + 1
        mean = (jnp.where(hidden, 0, logits).sum(axis=1) + positive) / count
        return cross_entropy + smoothing * (positive - mean) - target_entropy(count, smoothing)
    spread = jax.nn.softmax(lax.stop_gradient(others / temperature), axis=1, where=~hidden)
    alone = hidden.all(axis=1)
    mean = jnp.where(alone, positive, jnp.where(hidden, 0, spread * logits).sum(axis=1))
    entropy = entr(smoothing * spread).sum(axis=1) + entr(jnp.float32(1 - smoothing))
    return cross_entropy + smoothing * (positive - mean) - jnp.where(alone, 0, entropy)
