"""all-MiniLM-L6-v2 trained further with triplets.

    python -m experiments.main --config=quora_minilm_triplet

The whole epoch needs a GPU. On 2 cores of an AMD EPYC (Zen 3), beside other jobs, with version 0.1,
`python -m experiments.distillation --rows=minilm_triplet` took 22 minutes: 9 for 400 steps, after
which it stopped early, the others for the encoding of all questions. By exact search, H@1 and MRR:
validation 0.774 and 0.832 per pair, 0.780 and 0.834 per query; test 0.756 and 0.820, 0.777 and
0.832. That is less than before the training: results/distillation/README.md.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """72,810 triplets, one epoch, AdamW at 2e-5; a margin that all of them violate."""
    return load_config("quora_minilm_triplet")
