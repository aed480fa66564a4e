"""all-MiniLM-L6-v2 as it is, indexed and scored on the Quora pairs; nothing is trained.

python -m experiments.main --config=quora_minilm
"""

from ml_collections import ConfigDict

from experiments.configs import quora_minilm_sdml


def get_config() -> ConfigDict:
    """No step of `quora_minilm_sdml`."""
    config = quora_minilm_sdml.get_config()
    config.max_epochs = 0
    config.max_steps = 0
    return config
