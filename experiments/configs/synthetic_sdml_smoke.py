"""`synthetic_sdml` at tiny shapes: does everything run?

python -m experiments.main --config=synthetic_sdml_smoke
"""

from ml_collections import ConfigDict

from experiments.configs import synthetic_sdml


def shrink(config: ConfigDict) -> ConfigDict:
    """Tiny shapes and a few steps; modifies and returns `config`."""
    config.data.held_out_pairs = 200
    config.vocabulary_size = 1000
    config.hash_bins = 50
    config.embedding_dim = 16
    config.filters = 24
    config.output_dim = 16
    config.batch_size = 32
    config.max_steps = 12
    config.early_stopping.every_steps = 5
    config.log_every = 2
    config.checkpoint_every = 3
    config.index.factory = "IVF20,Flat"
    return config


def get_config() -> ConfigDict:
    """A log of 300 meanings."""
    config = shrink(synthetic_sdml.get_config())
    config.data.synthetic_clusters = 300
    return config
