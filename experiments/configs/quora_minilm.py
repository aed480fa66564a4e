"""all-MiniLM-L6-v2 as it is, indexed and scored on the Quora pairs; nothing is trained.

    python -m experiments.main --config=quora_minilm

By exact search, H@1 and MRR: validation 0.846 and 0.898 per pair, 0.860 and 0.907 per query; test
0.848 and 0.898, 0.873 and 0.914 (row `minilm` of `python -m experiments.distillation`). On 2 cores
of an AMD EPYC (Zen 3) it encodes 261 questions a second, 165,493 in eleven minutes.
"""

from ml_collections import ConfigDict

from experiments.configs import quora_sdml


def get_config() -> ConfigDict:
    """No step at all."""
    config = quora_sdml.get_config()
    config.encoder = "bert"
    config.pretrained = "minilm"
    config.max_epochs = 0
    return config
