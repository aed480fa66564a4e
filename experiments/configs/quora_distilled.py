"""A convolutional student of all-MiniLM-L6-v2 on the Quora pairs: imitation, then SDML beside it.

    python -m experiments.main --config=quora_distilled

On 2 cores of an AMD EPYC (Zen 3), with other jobs beside: 12 minutes, after the teacher's 12 over
all questions. By exact search, H@1 and MRR: validation 0.816 and 0.878 per pair, 0.833 and
0.888 per query; test 0.824 and 0.880, 0.853 and 0.899. What each part is worth:
results/distillation/README.md.
"""

from ml_collections import ConfigDict

from experiments.configs import quora_best


def get_config() -> ConfigDict:
    """The teacher's space first, then the labels in it; the encoder of `quora_best`."""
    config = quora_best.get_config()
    config.teacher.model = "minilm"
    config.teacher.words = True
    config.teacher.epochs = 2
    config.teacher.weight = 5.0
    config.normalize = True
    config.output_dim = 384
    config.scale = 3.5
    config.word_dropout = 0.15
    config.learning_rate_decay = "linear"
    config.max_epochs = 1
    config.early_stopping.patience = 10
    return config
