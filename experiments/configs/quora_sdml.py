"""The paper's experiment on the Quora question pairs.

python -m experiments.main --config=quora_sdml
"""

from ml_collections import ConfigDict

from qpr_jax.training.settings import default_settings


def get_config() -> ConfigDict:
    """The default settings, which are this experiment's."""
    return default_settings()
