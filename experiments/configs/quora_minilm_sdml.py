"""all-MiniLM-L6-v2 trained further with SDML.

    python -m experiments.main --config=quora_minilm_sdml

On 2 cores of an AMD EPYC (Zen 3), beside other jobs, with version 0.1, `python -m
experiments.distillation --rows=minilm_sdml`, a fifth of this training (10,240 pairs), took 19
minutes: 8 for the steps, the others for the encoding of all questions. By exact search,
H@1 and MRR: validation 0.847 and 0.902 per pair, 0.860 and 0.908 per query; test 0.839 and 0.892,
0.867 and 0.910.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """The sampling of `quora_best`, and a learning rate for transformers."""
    return load_config("quora_minilm_sdml")
