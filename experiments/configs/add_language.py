"""German words for the encoder of `quora_distilled`, all else of which stays as it is.

    python -m experiments.main --config=add_language

The encoder learns to give the vector of an English sentence for its German translation; only the
embeddings of the new words are trained, so an index of the English encoder opens with the new one
(`qpr extend`). Another encoder: `--config.encoder.pretrained=RUN`; another language:
`--config.data.parallel`. docs/add_language.md says what to expect.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """Imitation of the encoder's own vectors of English texts, by their translations alone."""
    return load_config("add_language")
