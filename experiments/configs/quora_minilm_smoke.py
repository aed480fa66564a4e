"""`quora_minilm` on few questions: does everything run?

python -m experiments.main --config=quora_minilm_smoke
"""

from ml_collections import ConfigDict

from experiments.configs import quora_minilm


def get_config() -> ConfigDict:
    """A few thousand questions."""
    config = quora_minilm.get_config()
    config.data.max_rows = 3000
    config.data.held_out_pairs = 200
    config.index.factory = "IVF20,Flat"
    return config
