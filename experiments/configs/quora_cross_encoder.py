"""A cross-encoder from MiniLM on the Quora pairs, over the hits of `quora_distilled`.

    python -m experiments.main --config=quora_distilled
    python -m experiments.main --config=quora_cross_encoder

211,200 pairs at 31 a second (`python -m benchmarks.cross_encoder --model minilm --pairs 512`, 2
cores of an AMD EPYC, Zen 3) are 114 minutes. With the features of the light re-ranker, test H@1
0.897, MRR 0.932 per query (`python -m experiments.two_stages`). Without the first run,
`--config.cross_encoder.first_stage=minilm`. docs/cross_encoder.md.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """Pairs of clusters, and hits of `quora_distilled` that mean something else."""
    return load_config("quora_cross_encoder")
