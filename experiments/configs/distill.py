"""A student of all-MiniLM-L6-v2 on any list of questions, without labels.

    python -m experiments.main --config=distill --config.data.path=questions.txt

On 2 cores of an AMD EPYC (Zen 3), with version 0.1, of 5,000 questions from public logs: 6.4
minutes, half of them for the teacher's encoding; agreement 0.400 on validation, 0.411 on test.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """The encoder of `quora_distilled`, imitation alone; set `data.path`."""
    return load_config("distill")
