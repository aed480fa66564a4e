"""Two tasks at once on the Quora pairs: multiple negatives ranking and online contrastive loss.

    python -m experiments.main --config=quora_multitask

Ranking learns to find duplicates, the contrastive loss to classify pairs; each has its own pairs,
and a step minimizes the sum of both. With a third of the filters, alternating, and as many pairs of
each kind as ranking alone has: +.006 average precision in classification, +.010 nDCG@10 in
retrieval (`python -m experiments.losses_by_task` with version 0.1, 2 cores of an AMD EPYC, Zen 3;
results/losses_by_task/README.md).
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """The encoder of `quora_best`, vectors of length 1."""
    return load_config("quora_multitask")
