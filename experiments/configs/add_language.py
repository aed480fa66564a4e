"""German words for the encoder of `quora_distilled`, all else of which stays as it is.

    python -m experiments.main --config=add_language

The encoder learns to give the vector of an English sentence for its German translation; only the
embeddings of the new words are trained, so an index of the English encoder opens with the new one
(`qpr extend`). On 2 cores of an AMD EPYC (Zen 3), with other jobs running: 7 minutes in all, 2 of
them steps. German to English and English to German, the nearest sentence is the translation for
0.792 and 0.800 of the Tatoeba test, 0.923 and 0.936 of the Multi30k test. English, per query on
test, by exact search: 0.851 and 0.899 before and after. Another encoder:
`--config.encoder.pretrained=RUN`; another language: `--config.data.parallel`.
docs/add_language.md says what to expect.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """Imitation of the encoder's own vectors of English texts, by their translations alone."""
    return load_config("add_language")
