"""`quora_sdml` with what improves it beyond the paper, and the same kind of encoder.

    python -m experiments.main --config=quora_best

On one core of an AMD EPYC (Zen 4), beside another training, with version 0.1: 12 epochs of 140 s,
2.2 GiB.
Through the index, H@1 and MRR: validation 0.787 and 0.850 per pair, 0.796 and 0.853 per query;
test 0.803 and 0.862, 0.815 and 0.869.
What each change is worth by itself: results/quora/README.md.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """Clusters sampled evenly, larger batches, three kernel sizes, token dropout."""
    return load_config("quora_best")
