"""Define a loss, register it, and train with it; here on a generated log of questions.

    pip install '.[train]' -c constraints.txt
    python examples/custom_loss.py runs/hinge

A loss of pairs gets `queries` [n, d] and `candidates` [m, d], m >= n: row i of both is a pair, all
other candidates are negatives. `clusters` int [m] is given with `loss.mask_own_cluster`, else None.
`axis_name` is the axis of the devices that share a batch: gather what the loss compares with, and
end with the mean. Train on your own pairs by `data.source="quora"` and `data.path="pairs.csv"`.
"""

import sys

import jax
import jax.numpy as jnp

from qpr_jax import LossSpec, load_config, register_loss, train_and_evaluate


def hinge_loss(
    queries: jax.Array,
    candidates: jax.Array,
    *,
    margin: float = 0.5,
    clusters: jax.Array | None = None,
    axis_name: str | None = None,
) -> jax.Array:
    """The mean over all negatives of max(0, margin + d(query, own) - d(query, negative))."""
    if clusters is not None:
        raise ValueError("this loss knows no clusters; leave out `loss.mask_own_cluster`")
    count = len(queries)
    first: jax.Array | int = 0
    own = candidates[:count]
    if axis_name is not None:
        first = jax.lax.axis_index(axis_name) * len(candidates)
        candidates = jax.lax.all_gather(candidates, axis_name, tiled=True)
    # From a product, since [n, N, d] differences would be too large for a batch.
    squares = (queries**2).sum(1)[:, None] + (candidates**2).sum(1)[None]
    distances = squares - 2 * queries @ candidates.T
    hinge = jnp.maximum(0, margin + ((queries - own) ** 2).sum(1)[:, None] - distances)
    negative = first + jnp.arange(count)[:, None] != jnp.arange(len(candidates))[None]
    loss = hinge.mean(where=negative)
    return loss if axis_name is None else jax.lax.pmean(loss, axis_name)


# The argument `margin` gets the setting `loss.margin`.
register_loss("hinge", LossSpec(hinge_loss, "pairs"))

if __name__ == "__main__":
    config = load_config("synthetic_sdml:smoke")  # a few seconds; "quora_best" for a real training
    config.loss.names, config.loss.margin = ("hinge",), 0.5
    config.rerank.candidates = 0
    report = train_and_evaluate(config, sys.argv[1] if sys.argv[1:] else "runs/hinge")
    scores = report["test"]["exact"]["per_query"]
    print(f"test: hits@1 {scores['hits@1']:.3f}, hits@10 {scores['hits@10']:.3f}")
