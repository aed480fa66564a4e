"""A cross-encoder from MiniLM on the Quora pairs.

python -m experiments.main --config=quora_cross_encoder
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """Pairs of clusters, and hits of `quora_distilled` that mean something else."""
    return load_config("quora_cross_encoder")
