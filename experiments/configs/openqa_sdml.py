"""The paper's experiment on question-answer logs: those with one answer are paraphrases.

python -m experiments.main --config=openqa_sdml --config.data.path=logs/
"""

from ml_collections import ConfigDict

from qpr_jax.training.settings import default_settings


def get_config() -> ConfigDict:
    """The paper's vocabulary for this data."""
    config = default_settings()
    config.data.source = "qa_logs"
    config.vocabulary_size = 100_000
    config.hash_bins = 10_000
    return config
