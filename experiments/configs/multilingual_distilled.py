"""A student of all-MiniLM-L6-v2 that gives German sentences the vectors of their translations.

    python -m experiments.main --config=multilingual_distilled

Needs $QPR_DATA_DIR/parallel: tatoeba.en-de, multi30k, wiktionary.de-en, and the tests tatoeba_test,
multi30k.test and ntrex; docs/multilingual.md says what they are, and how to take others.

On 2 cores of an AMD EPYC (Zen 3), with other jobs running: the steps take 11 minutes, once the
teacher has encoded 260,000 questions and sentences. German to English and English to German, the
nearest sentence is the translation for 0.948 and 0.960 of the Tatoeba test, 0.996 and 0.996 of the
Multi30k test, 0.950 and 0.945 of NTREX. Held-out German questions find their English sides among
the Quora questions with H@1 0.888 and MRR 0.920. English, per query, by exact search: validation
0.832 and 0.888, test 0.854 and 0.901. Against a student of English alone, and other languages:
`python -m experiments.multilingual` (results/multilingual).
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """The encoder of `quora_distilled` with words of two languages and n-grams of unknown ones."""
    return load_config("multilingual_distilled")
