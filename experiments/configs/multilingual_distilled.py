"""A student of all-MiniLM-L6-v2 that gives German sentences the vectors of their translations.

    python -m experiments.main --config=multilingual_distilled

Needs $QPR_DATA_DIR/parallel: tatoeba.en-de, multi30k, wiktionary.de-en, and the tests tatoeba_test,
multi30k.test and ntrex; docs/multilingual.md says what they are, and how to take others.
TODO-LEAD: hardware, minutes of training, minutes of the teacher; translation accuracy on the
Tatoeba and Multi30k tests, H@1 and MRR of held-out German questions, and of English ones by exact
search. Against a student of English alone: `python -m experiments.multilingual`.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """The encoder of `quora_distilled` with words of two languages and n-grams of unknown ones."""
    return load_config("multilingual_distilled")
