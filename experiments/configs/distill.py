"""A student of all-MiniLM-L6-v2 on any list of questions, without labels.

    python -m experiments.main --config=distill --config.data.path=questions.txt

On 2 cores of an AMD EPYC (Zen 4), of the 5,810 questions of WebQuestions: 3.1 minutes, agreement
0.658 on test (`python -m benchmarks.all training_distill`).
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """The encoder of `quora_distilled`, imitation alone; set `data.path`."""
    return load_config("distill")
