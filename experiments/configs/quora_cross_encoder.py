"""A cross-encoder from MiniLM on the Quora pairs, over the hits of `quora_distilled`.

    python -m experiments.main --config=quora_distilled
    python -m experiments.main --config=quora_cross_encoder

On 2 cores of an AMD EPYC (Zen 5), beside about ten other programs: 74 minutes, 211,200 pairs. H@1
and MRR per query of the first 20 hits of the validation queries: 0.887 and 0.925, where the first
stage has 0.833 and 0.887. Without the first run, `--config.cross_encoder.first_stage=minilm`.
docs/cross_encoder.md.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """Pairs of clusters, and hits of `quora_distilled` that mean something else."""
    return load_config("quora_cross_encoder")
