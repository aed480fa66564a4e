"""A student of all-MiniLM-L6-v2 on any list of questions, without a label.

python -m experiments.main --config=distill --config.data.path=questions.txt
"""

from ml_collections import ConfigDict

from experiments.configs import quora_distilled


def get_config() -> ConfigDict:
    """Imitation alone; `data.path` is to be given."""
    config = quora_distilled.get_config()
    config.data.source = "questions"
    config.teacher.epochs = 6
    config.max_epochs = 0
    config.word_dropout = 0.0
    config.early_stopping.metric = "agreement"
    return config
