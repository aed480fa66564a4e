"""Two tasks at once on the Quora pairs: multiple negatives ranking and online contrastive loss.

    python -m experiments.main --config=quora_multitask

Ranking learns to find, contrastive loss to tell apart; each has its batches, and a step is on the
sum of both. With a third of the filters, and in turns, as many pairs of either kind are worth, over
ranking alone, .006 of average precision in telling duplicates apart, and .010 of nDCG@10 in finding
them (`python -m experiments.losses_by_task`, 2 cores of an AMD EPYC, Zen 3;
results/losses_by_task/README.md).
"""

from ml_collections import ConfigDict

from experiments.configs import quora_best


def get_config() -> ConfigDict:
    """The encoder of `quora_best`, vectors of length 1."""
    config = quora_best.get_config()
    config.normalize = True
    config.loss = "ranking+online_contrastive"
    config.smoothing = 0.0
    return config
