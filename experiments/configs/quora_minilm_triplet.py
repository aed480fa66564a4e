"""all-MiniLM-L6-v2 trained further with triplets."""

from ml_collections import ConfigDict

from experiments.configs import quora_minilm_sdml


def get_config() -> ConfigDict:
    """72,810 triplets, one epoch, AdamW at 2e-5; a margin that all of them violate."""
    config = quora_minilm_sdml.get_config()
    config.loss = "triplet"
    config.symmetric = False
    config.distance = "euc"
    config.margin = 5.0
    config.scale = 1.0
    config.batch_size = 16
    config.learning_rate = 2e-5
    config.max_steps = 72_810 // 16
    config.warmup_steps = config.max_steps // 10
    return config
