"""all-MiniLM-L6-v2 as it is, indexed and scored on the Quora pairs; nothing is trained.

python -m experiments.main --config=quora_minilm
"""

from ml_collections import ConfigDict

from experiments.configs import quora_sdml


def get_config() -> ConfigDict:
    """No step at all."""
    config = quora_sdml.get_config()
    config.encoder = "bert"
    config.pretrained = "minilm"
    config.max_epochs = 0
    return config
