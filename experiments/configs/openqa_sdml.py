"""The paper's experiment on question-answer logs: those with one answer are paraphrases.

python -m experiments.main --config=openqa_sdml --config.data.path=logs/

On the 127,000 rows of `$QPR_DATA_DIR/qa_logs`: 2.5 minutes and 5.6 GiB on 2 cores of an AMD EPYC
(Zen 4; `python -m benchmarks.training_times`); test H@1 0.844 and MRR 0.871 per pair, 0.784 and
0.816 per query, through the index (`python -m experiments.openqa_tables`).
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """The paper's vocabulary for this data."""
    return load_config("openqa_sdml")
