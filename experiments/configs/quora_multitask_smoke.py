"""`quora_multitask` on the first rows and tiny shapes: does everything run?

python -m experiments.main --config=quora_multitask_smoke
"""

from ml_collections import ConfigDict

from experiments.configs import quora_multitask, synthetic_sdml_smoke


def get_config() -> ConfigDict:
    """The first 3,000 rows of the pair file."""
    config = synthetic_sdml_smoke.shrink(quora_multitask.get_config())
    config.data.max_rows = 3000
    return config
