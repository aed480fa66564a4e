"""A convolutional student of all-MiniLM-L6-v2 on the Quora pairs: imitation, then SDML beside it.

    python -m experiments.main --config=quora_distilled

On 2 cores of an AMD EPYC (Zen 4): 13 minutes, half of them for the teacher's encoding (`python -m
benchmarks.training_times`). By exact search, H@1 and MRR, means of three seeds
(`python -m experiments.two_stages`): validation 0.814 and 0.874 per pair, 0.834 and 0.888 per
query; test 0.823 and 0.881, 0.848 and 0.897; re-ranked, test 0.879 and 0.920 per query. What each
part is worth: results/distillation/README.md.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """Imitation of the teacher, then the labeled pairs; the encoder of `quora_best`."""
    return load_config("quora_distilled")
