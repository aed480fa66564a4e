"""Smoothed deep metric learning (SDML): a softmax over distances, with smoothed targets."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import entr

from qpr_jax.losses.autodiff_tiles import sum_in_tiles
from qpr_jax.losses.centers import (
    Candidates,
    Pairs,
    across,
    center,
    center_groups,
    far_groups,
    outer,
)
from qpr_jax.losses.choices import PRIORS, SCORES
from qpr_jax.losses.dispatch import Method, Tile, choose_method
from qpr_jax.losses.distances import (
    as_floats,
    check_batch,
    check_choice,
    from_squared,
    gather,
    gather_clusters,
    non_negatives,
    own_rows,
    paired_squared_distances,
    products,
    squared_distances,
)
from qpr_jax.losses.tiled_softmax import Options, Rows, target_entropy, tiled_softmax_sum
from qpr_jax.tuning import Tuning, default_tuning

log = logging.getLogger(__name__)


def sdml_loss(
    queries: jax.Array,
    candidates: jax.Array,
    *,
    smoothing: float = 0.3,
    distance: str = "ssd",
    prior: str = "uniform",
    clusters: jax.Array | None = None,
    symmetric: bool = False,
    tile: Tile = "auto",
    axis_name: Hashable | None = None,
    precision: str | lax.PrecisionLike = "highest",
    tuning: Tuning | None = None,
) -> jax.Array:
    """Mean over the batch of the KL divergence of the smoothed targets from the softmax of -D.

    Row i of the batch is a pair: `candidates[i]` is a paraphrase of `queries[i]`; the other
    candidates are its negatives. With D_ij the distance of query i and candidate j, and N
    candidates of all devices, the prediction is p_ij = softmax_j(-D_ij) and the target
    t_ij = (1 - smoothing) [i = j] + smoothing q_ij, with q the prior.

    Args:
      queries: floating [n, d].
      candidates: floating [m, d], m >= n; those from n on are negatives of every query.
      smoothing: the mass spread by the prior, 0 to 1; 0 gives plain cross-entropy.
      distance: "ssd", the squared Euclidean one, "euc", its root, or "dot", minus the dot product
        (see `ranking_loss`).
      prior: "uniform", 1/N on every candidate, including the row's own, or "distance", the softmax
        of -D over the negatives, without a gradient (all on the own candidate if
        there is no negative).
      clusters: integer [m], or [n] if the extra candidates have none: the cluster of each
        candidate and its query, -1 for none; ids fit int32. A row skips other candidates
        of its own cluster in prediction, prior and N.
      symmetric: take the mean of this loss and that of the n paired candidates against all queries.
      tile: rows of distances that are computed at a time. Memory then grows with tile x N instead
        of n x N; value and gradient are the same to rounding. None: all at once. "auto": chosen
        by size, see `dispatch.choose_method`, and logged.
      axis_name: the mapped axis (for example of `jax.shard_map`) that the batch is split over. The
        candidates of all devices are gathered, N and q are those of the global batch, and the
        value is the same on every device. `jax.grad` of the mapped function is the gradient of
        the one-device loss. A gradient taken inside an unchecked map (`check_vma=False`) is too
        large by the number of devices: take it outside, or leave the check on.
      precision: of the matrix products, as JAX names it.
      tuning: the platform and its constants; None: of JAX's first device.

    Returns:
      float32 scalar, float64 if the vectors are, at least 0 to rounding.

    Raises:
      ValueError: an argument has another shape, range or name than stated above.

    Example:
      >>> x = jnp.eye(3)
      >>> float(sdml_loss(x, x, smoothing=0.0))  # log(1 + 2 exp(-2))
      0.23954...

    Source:
      Bonadiman, Kumar and Mittal (2019), equations (3) and (4), Figure 2.
    """
    check_batch(queries, candidates, clusters)
    check_choice("distance", distance, SCORES)
    check_choice("prior", prior, PRIORS)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"expected `smoothing` from 0 to 1, got {smoothing}")

    tuning = tuning or default_tuning()
    n, m = queries.shape[0], candidates.shape[0]
    queries, candidates = as_floats(queries, candidates)
    own = own_rows(n, axis_name)
    all_clusters = gather_clusters(clusters, n, m, axis_name)
    all_candidates = gather(candidates, n, axis_name)
    method = choose_method(
        tile,
        n,
        len(all_candidates),
        distance=distance,
        prior=prior,
        tuning=tuning,
    )
    log.info("loss: %d x %d distances, %s", n, len(all_candidates), method)
    options = Options(smoothing, symmetric, method.tile or n, axis_name, precision, tuning)
    mean = functools.partial(
        _mean,
        method=method,
        options=options,
        distance=distance,
        prior=prior,
    )
    rows = (own, all_clusters)
    if distance != "ssd":
        loss = mean(*center(queries, candidates, all_candidates, distance), *rows)
    else:
        gathered = None if axis_name is None else all_candidates
        loss = _mean_from_centers(mean, (queries, candidates, gathered), rows)
    return loss if axis_name is None else lax.pmean(loss, axis_name)


def _mean(
    pairs: Pairs,
    candidates: Candidates,
    own: jax.Array,
    clusters: jax.Array | None,
    *,
    method: Method,
    options: Options,
    distance: str,
    prior: str,
) -> jax.Array:
    """The mean divergence of this device's queries and, if symmetric, of its candidates."""
    count, directions = len(own), 1 + options.symmetric
    if method.name == "tiled_softmax":
        total = tiled_softmax_sum(pairs, candidates, Rows(own[:, 0], clusters), options)
        return total / (count * directions)
    divergences = functools.partial(_divergences, distance=distance, prior=prior, options=options)
    loss = jnp.zeros((), pairs.queries.dtype)
    axis_name = options.axis_name
    sides = [(pairs, candidates)]
    if options.symmetric:
        sides.append(_reverse(pairs, axis_name))
    for rows, others in sides:
        known = None if clusters is None else clusters[: len(others.squares)]
        if method.tile is None:
            loss += divergences(rows, others, own, known).mean()
        else:
            total = sum_in_tiles(divergences, rows, others, own, known, method.tile, axis_name)
            loss += total / count
    return loss / directions


def _mean_from_centers(mean: Callable[..., jax.Array], vectors: Any, rows: Any) -> jax.Array:
    """The loss `mean` of vectors from their center or, of two far groups, from one center each.

    `lax.cond` chooses, with the gradient computed in the branch that is taken. So vectors without
    far groups pay for the choice alone, and no branch keeps anything for the gradient.

    Args:
      mean: (pairs, candidates, *rows) -> scalar.
      vectors: queries, candidates, and all candidates if they are of several devices.
      rows: integer arrays or None.
    """

    def choose(transform: Callable[..., Any], vectors: Any, rows: Any) -> Any:
        """`transform` of the loss: the loss itself, or its value and gradient."""
        all_candidates = vectors[1] if vectors[2] is None else vectors[2]
        far, groups = far_groups(all_candidates)

        def branch(centered: Callable[..., tuple[Pairs, Candidates]]) -> Callable[..., Any]:
            def loss(vectors: Any) -> jax.Array:
                queries, candidates, gathered = vectors
                others = candidates if gathered is None else gathered
                return mean(*centered(queries, candidates, others), *rows)

            return transform(loss)

        one = branch(functools.partial(center, distance="ssd"))
        two = branch(functools.partial(center_groups, groups=groups))
        return lax.cond(far, two, one, vectors)

    @jax.custom_vjp
    def loss(vectors: Any, rows: Any) -> jax.Array:
        return choose(lambda loss: loss, vectors, rows)

    def backward(gradients: Any, weight: jax.Array) -> Any:
        return jax.tree.map(lambda gradient: weight * gradient, gradients), None

    loss.defvjp(functools.partial(choose, jax.value_and_grad), backward)
    return loss(vectors, rows)


def _reverse(pairs: Pairs, axis_name: Hashable | None) -> tuple[Pairs, Candidates]:
    """The candidates of the pairs as queries, and the queries of all devices as candidates."""
    reverse = Pairs(
        pairs.candidates,
        pairs.queries,
        pairs.candidate_squares,
        pairs.query_squares,
        pairs.candidate_group,
        pairs.query_group,
    )
    queries = Candidates(pairs.queries, pairs.query_squares, pairs.query_group)
    count = len(pairs.queries)
    return reverse, jax.tree.map(lambda array: gather(array, count, axis_name), queries)


def _divergences(
    pairs: Pairs,
    candidates: Candidates,
    own: jax.Array,
    clusters: jax.Array | None,
    *,
    distance: str,
    prior: str,
    options: Options,
) -> jax.Array:
    """The divergence of each query over all candidates, [n]."""
    smoothing, precision, tuning = options.smoothing, options.precision, options.tuning
    if distance == "euc":
        squared = squared_distances(pairs.queries, candidates.vectors, precision, tuning)
        logits = -from_squared(squared, distance)
        own_squared = paired_squared_distances(pairs.queries, pairs.candidates)
        positive = -from_squared(own_squared, distance)
    else:
        # -D_ij; for "ssd" without |x_i|^2, which changes neither softmax nor cross-entropy.
        logits = 2 * products(pairs.queries, candidates.vectors, precision, tuning)
        logits -= candidates.squares[None]
        logits -= across(*outer(pairs.query_group, candidates.group))
        positive = 2 * (pairs.queries * pairs.candidates).sum(axis=1) - pairs.candidate_squares
        positive -= across(pairs.query_group, pairs.candidate_group)

    # The cross-entropy compares the own candidate with the others, not with all: for p_ii close to
    # 1, 1 - p_ii would be lost to rounding.
    hidden = non_negatives(own, len(candidates.squares), clusters)
    others = jnp.where(hidden, -jnp.inf, logits)
    cross_entropy = jax.nn.softplus(jax.nn.logsumexp(others, axis=1) - positive)

    if prior == "uniform":
        count = ((~hidden).sum(axis=1) + 1).astype(logits.dtype)
        mean = (jnp.where(hidden, 0, logits).sum(axis=1) + positive) / count
        return cross_entropy + smoothing * (positive - mean) - target_entropy(count, smoothing)
    spread = jax.nn.softmax(lax.stop_gradient(others), axis=1, where=~hidden)
    alone = hidden.all(axis=1)
    mean = jnp.where(alone, positive, jnp.where(hidden, 0, spread * logits).sum(axis=1))
    entropy = entr(smoothing * spread).sum(axis=1) + entr(jnp.asarray(1 - smoothing, logits.dtype))
    return cross_entropy + smoothing * (positive - mean) - jnp.where(alone, 0, entropy)
