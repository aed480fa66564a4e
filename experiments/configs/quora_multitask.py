"""Two tasks at once on the Quora pairs: multiple negatives ranking and online contrastive loss.

    python -m experiments.main --config=quora_multitask

Ranking learns to find, contrastive loss to tell apart; each has its batches, and a step is on the
sum of both. With a third of the filters, and in turns, as many pairs of either kind are worth, over
ranking alone, .006 of average precision in telling duplicates apart, and .010 of nDCG@10 in finding
them (`python -m experiments.losses_by_task`, 2 cores of an AMD EPYC, Zen 3;
results/losses_by_task/README.md).
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """The encoder of `quora_best`, vectors of length 1."""
    return load_config("quora_multitask")
