"""`openqa_sdml` at tiny shapes: does everything run?

python -m experiments.main --config=openqa_sdml_smoke
"""

from ml_collections import ConfigDict

from experiments.configs import openqa_sdml, synthetic_sdml_smoke


def get_config() -> ConfigDict:
    """A few steps."""
    return synthetic_sdml_smoke.shrink(openqa_sdml.get_config())
