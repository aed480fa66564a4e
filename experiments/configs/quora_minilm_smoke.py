"""`quora_minilm` on few questions: does everything run?

python -m experiments.main --config=quora_minilm_smoke
"""

from ml_collections import ConfigDict

from experiments.configs import quora_minilm_sdml_smoke


def get_config() -> ConfigDict:
    """The questions of `quora_minilm_sdml_smoke`."""
    config = quora_minilm_sdml_smoke.get_config()
    config.update_from_flattened_dict(dict.fromkeys(("max_epochs", "max_steps"), 0))
    return config
