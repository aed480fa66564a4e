"""`quora_distilled` at tiny shapes: does everything run?

python -m experiments.main --config=quora_distilled_smoke
"""

from ml_collections import ConfigDict

from experiments.configs import quora_distilled, synthetic_sdml_smoke


def get_config() -> ConfigDict:
    """A few steps on few questions."""
    config = synthetic_sdml_smoke.shrink(quora_distilled.get_config())
    config.data.max_rows = 3000
    return config
