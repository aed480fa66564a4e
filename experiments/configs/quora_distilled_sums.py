"""The student of `quora_distilled`, with sums of n-grams and of embeddings.

    python -m experiments.main --config=quora_distilled_sums

On 2 cores of an AMD EPYC (Zen 3), next to other jobs: 46 minutes, 26 of them until the encoder is
there, after those in which the teacher encodes all questions. By exact search, H@1 and MRR, one
seed: validation 0.823 and 0.881 per pair, 0.847 and 0.897 per query; test 0.832 and 0.889, 0.861
and 0.906; re-ranked, test 0.878 and 0.921 per query. Those of `quora_distilled`:
results/distillation/README.md.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """Rare words are sums of n-grams; the projection reads the sum of the embeddings, too."""
    return load_config("quora_distilled_sums")
