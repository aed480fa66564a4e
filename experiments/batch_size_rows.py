"""The rows of the batch-size study: a batch size and a rule for the learning rate each."""

from __future__ import annotations

from typing import Any

from experiments.configs import quora_sdml
from experiments.quora_rows import STUDY
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import override

EXAMPLES = 4 * 220_306  # four epochs of the shared pair file
SIZES = (512, 1024, 2048, 4096, 8192, 16_384, 32_768)
RULES: dict[str, dict[str, Any]] = {
    "sqrt": {"optimizer.learning_rate_scaling": "sqrt"},
    "none": {"optimizer.learning_rate_scaling": "none"},
    "linear": {"optimizer.learning_rate_scaling": "linear"},
    "mask": {"optimizer.learning_rate_scaling": "sqrt", "loss.mask_own_cluster": True},
    "stop": {"optimizer.learning_rate_scaling": "sqrt"},
}


def row_config(size: int, rule: str) -> TrainConfig:
    """The settings of a row: `quora_sdml` with the filters of the paper's tables."""
    config = quora_sdml.get_config()
    steps = max(1, round(EXAMPLES / size))
    config = override(config, STUDY | RULES[rule])
    config.batch_size = size
    config.optimizer.warmup_steps = steps // 20
    config.log_every = max(1, min(20, steps // 10))
    if rule == "stop":
        config.max_epochs = 40
    else:
        config.max_steps = steps
        config.early_stopping.every_steps = max(1, steps // 4)
        config.early_stopping.patience = 5  # more than there are evaluations
    return config
