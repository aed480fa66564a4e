"""Losses: pure functions of vectors that return one value a row.

A loss of pairs is `loss(queries, candidates, positives, clusters=None, **settings)`:
  queries: floating [n, d], the rows.
  candidates: floating [m, d], of the same type.
  positives: int [n], the candidate that each row is paired with.
  clusters: int [m], the cluster of each candidate, -1 for none. A row's negatives are all
    candidates but its positive and those of the cluster of its positive.
It returns [n]. `batch_loss` takes the mean of such a loss over a batch. `mean_loss` does that for
the other losses, which compare no row with the rest. Both work inside `jax.shard_map`.

A loss with the arguments `both` and `axis_name` can compute both directions at once. With `both` it
returns the mean with the loss of each positive against the queries of all devices. Row i of device
k must then have the positive k n + i.

Matrix products have the precision of `jax.default_matmul_precision`, else "highest".
"""

from qpr_jax.errors import needs

with needs("the losses", ".[train]"):
    from qpr_jax.arrays import is_negative, squared_distances
    from qpr_jax.losses.among_candidates import ranking_loss, sdml_loss, triplet_loss
    from qpr_jax.losses.batch import batch_loss, mean_loss
    from qpr_jax.losses.of_rows import (
        contrastive_loss,
        distillation_loss,
        listwise_loss,
        online_contrastive_loss,
    )

__all__ = [
    "batch_loss",
    "contrastive_loss",
    "distillation_loss",
    "is_negative",
    "listwise_loss",
    "mean_loss",
    "online_contrastive_loss",
    "ranking_loss",
    "sdml_loss",
    "squared_distances",
    "triplet_loss",
]
