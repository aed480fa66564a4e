"""The student of `quora_distilled`, with sums of n-grams and of embeddings.

    python -m experiments.main --config=quora_distilled_sums

On 2 cores of an AMD EPYC (Zen 4): 15 minutes, half of them for the teacher's encoding (`python -m
benchmarks.training_times`). By exact search, H@1 and MRR, means of three seeds: validation 0.822
and 0.880 per pair, 0.842 and 0.894 per query; test 0.828 and 0.886, 0.857 and 0.904; re-ranked, one
seed, test 0.878 and 0.921 per query. Those of `quora_distilled`: results/distillation/README.md.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """Rare words are sums of n-grams; the projection reads the sum of the embeddings, too."""
    return load_config("quora_distilled_sums")
