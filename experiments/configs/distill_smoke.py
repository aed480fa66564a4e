"""`distill` at tiny shapes: does everything run?

python -m experiments.main --config=distill_smoke
"""

from ml_collections import ConfigDict

from experiments.configs import distill, synthetic_sdml_smoke


def get_config() -> ConfigDict:
    """A few steps on few questions."""
    config = synthetic_sdml_smoke.shrink(distill.get_config())
    config.data.max_rows = 3000
    config.data.crossed = 500
    return config
