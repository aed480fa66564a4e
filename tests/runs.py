"""A run's folder with a small encoder of random weights."""

import pathlib
from typing import Any

import numpy as np

from qpr_jax.encoders.exported import write_export
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import Vocabulary

WORDS = tuple(tokenize("how can i learn python quickly what is the best way to cook rice"))


def write_encoder(run: pathlib.Path, seed: int = 0, **settings: Any) -> None:
    rng = np.random.default_rng(seed)
    vocabulary = Vocabulary(WORDS, bins=50)
    write_export(
        run / "export",
        embedding=rng.normal(size=(vocabulary.size, 8)),
        kernels=[0.3 * rng.normal(size=(3, 8, 12))],
        biases=[rng.normal(size=12)],
        projection=rng.normal(size=(12, 6)),
        vocabulary=vocabulary,
        max_words=64,
        settings=settings,
    )
