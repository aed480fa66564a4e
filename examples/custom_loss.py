"""Define a loss, register it, and train with it; here on a generated log of questions.

    pip install '.[train]' -c constraints.txt
    python examples/custom_loss.py runs/hinge

A loss of pairs returns one value for each of the `queries` [n, d], which it compares with all
`candidates` [m, d]. `positives` int [n] is the candidate that each query is paired with, and
`clusters` int [m] is given with `loss.mask_own_cluster`, else None. The training gathers the
candidates of all devices, and takes the mean. Train on your own pairs by `data.source="quora"` and
`data.path="pairs.csv"`.
"""

import sys

import jax.numpy as jnp

from qpr_jax import load_config, register_loss, train_and_evaluate
from qpr_jax.losses import is_negative, squared_distances


def hinge_loss(queries, candidates, positives, clusters=None, *, margin=0.5):
    """The mean over the negatives of max(0, margin + d(query, positive) - d(query, negative))."""
    distances = squared_distances(queries, candidates)
    positive = jnp.take_along_axis(distances, positives[:, None], axis=1)
    negative = is_negative(positives, clusters, len(candidates))
    return jnp.maximum(0, margin + positive - distances).mean(axis=1, where=negative)


# The argument `margin` gets the setting `loss.margin`.
register_loss("hinge", hinge_loss)

if __name__ == "__main__":
    config = load_config("synthetic_sdml:smoke")  # a few seconds; "quora_best" for a real training
    config.loss.names, config.loss.margin = ("hinge",), 0.5
    config.rerank.candidates = 0
    report = train_and_evaluate(config, sys.argv[1] if sys.argv[1:] else "runs/hinge")
    scores = report["test"]["exact"]["per_query"]
    print(f"test: hits@1 {scores['hits@1']:.3f}, hits@10 {scores['hits@10']:.3f}")
