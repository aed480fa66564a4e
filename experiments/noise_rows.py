"""The trainings of the noise study: losses and rates of false negatives."""

from __future__ import annotations

from typing import Any

from experiments.configs import synthetic_sdml
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import override

RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
# name -> what it is called, its settings
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "sdml": ("SDML, eps 0.3", {}),
    "eps_0": ("SDML, eps 0", {"loss.smoothing": 0.0}),
    "tl_rand": ("TL (Rand)", {"loss.names": ("triplet",)}),
    "tl_hard": ("TL (Hard)", {"loss.names": ("triplet",), "loss.negatives": "hard"}),
}

STUDY: dict[str, Any] = {
    "loss.mask_own_cluster": True,
    "max_epochs": 60,  # random triplets still gain after fifty
    "early_stopping.patience": 3,
    "checkpoint_every": 1000,
}


def row_config(loss: str, rate: float, seed: int = 0) -> TrainConfig:
    """The settings of a loss at a rate."""
    config = synthetic_sdml.get_config()
    config = override(config, STUDY | LOSSES[loss][1])
    config.data.false_negatives = rate
    config.seed = seed
    return config
