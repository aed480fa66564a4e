"""Made-up models of pairs and encoders for tests."""

from typing import Any

import numpy as np

from qpr_jax import Encoder
from qpr_jax.pair_model.guards import GUARDS
from qpr_jax.pair_model.plain import PlainModel
from qpr_jax.pair_model.terms import Frequencies
from qpr_jax.pair_model.words import FEATURES, Network, WordsModel

WORDS = ("what", "is", "car", "automobile", "price", "2015", "2016")


class WordEncoder(Encoder):
    """An encoder of a few words, whose vectors are of length 1."""

    fingerprint, dimension, normalize = "an encoder", 5, True

    def word_embeddings(self) -> tuple[tuple[str, ...], np.ndarray]:
        return WORDS, np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)

    def encode(self, texts: Any) -> np.ndarray:
        rows = [np.random.default_rng([*text.encode(), 1]).normal(size=5) for text in texts]
        vectors = np.array(rows, np.float32).reshape(-1, 5)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def plain_model(encoder: str = "an encoder", middle: float = 2.0) -> PlainModel:
    """The score is the logistic of 2 (middle - squared distance), and 0 where numbers differ."""
    words, bias = [-20.0 * (name == "numbers differ") for name in (*GUARDS, "")], 2 * middle - 4
    return PlainModel(encoder, (4.0, 0.0, *words, bias), (4.0, *words, bias))


def words_model(encoder: Any = None, **changes: Any) -> WordsModel:
    """A words model of random weights, that reorders three hits; a distance counts against a pair.

    The reach is 4: all pairs are within it.
    """
    bound_encoder, rng = encoder or WordEncoder(), np.random.default_rng(0)
    f, h = FEATURES, 4
    shapes = ((f,), (f,), (f, h), (h,), (h,), (f,), (1,))
    drawn = Network(*(rng.normal(0, 0.2, shape).astype(np.float32) for shape in shapes))
    linear = drawn.linear.copy()
    linear[1] = -2
    parts: dict[str, Any] = {
        "encoder": bound_encoder.fingerprint,
        "depth": 3,
        "farthest": 4.0,
        "network": drawn._replace(scale=np.ones(f, np.float32), linear=linear),
        "frequencies": Frequencies.count(["what is the price of a car", "what is a car"]),
        "embeddings": bound_encoder,
    }
    return WordsModel(**(parts | changes))
