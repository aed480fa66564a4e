"""all-MiniLM-L6-v2 trained further with SDML.

    python -m experiments.main --config=quora_minilm_sdml

On 2 cores of an AMD EPYC (Zen 3), with other jobs beside, the fifth of it that is `python -m
experiments.distillation --rows=minilm_sdml`, 10,240 pairs, took 19 minutes, 8 of them for the
steps, the others for the encoding of all questions. By exact search, H@1 and MRR: validation 0.847
and 0.902 per pair, 0.860 and 0.908 per query; test 0.839 and 0.892, 0.867 and 0.910.
"""

from ml_collections import ConfigDict

from experiments.configs import quora_sdml


def get_config() -> ConfigDict:
    """The draws of `quora_best`, the rate that suits a transformer."""
    config = quora_sdml.get_config()
    config.sampling = "clusters"
    config.mask_own_cluster = True
    config.symmetric = True
    config.encoder = "bert"
    config.pretrained = "minilm"
    config.scale = 3.0
    config.batch_size = 256
    config.learning_rate = 5e-5
    config.learning_rate_decay = "linear"
    config.weight_decay = 0.01
    config.warmup_steps = 20
    config.max_steps = 200
    config.early_stopping.metric = "roc_auc"
    config.early_stopping.every_steps = 100
    config.checkpoint_every = 50
    config.log_every = 10
    return config
