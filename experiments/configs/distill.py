"""A student of all-MiniLM-L6-v2 on any list of questions, without a label.

    python -m experiments.main --config=distill --config.data.path=questions.txt

On 2 cores of an AMD EPYC (Zen 3), of 5,000 questions drawn from public logs: 6.4 minutes, half of
them the teacher's; agreement 0.400 on validation, 0.411 on test.
"""

from ml_collections import ConfigDict

from experiments.configs import quora_distilled, quora_sdml


def get_config() -> ConfigDict:
    """The encoder of `quora_distilled`, imitation alone; `data.path` is to be given."""
    config = quora_sdml.get_config()
    student = quora_distilled.get_config()
    for name in ("teacher", "windows", "filters", "output_dim", "normalize"):
        config[name] = student[name]
    config.data.source = "questions"
    config.teacher.epochs = 6
    config.teacher.min_steps = 1000
    config.data.crossed = 50_000
    config.teacher.weight = 0.0
    config.max_epochs = 0
    config.learning_rate_decay = "linear"
    config.early_stopping.metric = "agreement"
    config.early_stopping.every_steps = 200
    config.early_stopping.patience = 10
    return config
