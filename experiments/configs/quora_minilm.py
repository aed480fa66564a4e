"""all-MiniLM-L6-v2 as it is, indexed and scored on the Quora pairs; nothing is trained.

    python -m experiments.main --config=quora_minilm

By exact search, H@1 and MRR: validation 0.846 and 0.898 per pair, 0.860 and 0.907 per query; test
0.848 and 0.898, 0.873 and 0.914 (row `minilm` of `python -m experiments.distillation`); re-ranked,
test 0.894 and 0.932 per query (`python -m experiments.two_stages`). On 2 cores
of an AMD EPYC (Zen 3) it encodes 261 questions a second, 165,493 in eleven minutes.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """The pretrained encoder, without training."""
    return load_config("quora_minilm")
