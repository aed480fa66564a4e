"""`quora_minilm_sdml` at tiny shapes: does everything run?

python -m experiments.main --config=quora_minilm_sdml_smoke
"""

from ml_collections import ConfigDict

from experiments.configs import quora_minilm_sdml, synthetic_sdml_smoke


def get_config() -> ConfigDict:
    """A few steps on few questions."""
    config = synthetic_sdml_smoke.shrink(quora_minilm_sdml.get_config())
    config.warmup_steps = 2
    config.data.max_rows = 3000
    return config
