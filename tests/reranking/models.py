"""Made-up re-rankers and encoders for tests."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from qpr_jax import Encoder
from qpr_jax.reranking.calibration import PairCalibration, inputs_of
from qpr_jax.reranking.features import FEATURES, symmetric
from qpr_jax.reranking.light import LightModel, Network
from qpr_jax.reranking.terms import Frequencies

WORDS = ("what", "is", "car", "automobile", "price", "2015", "2016")


class WordEncoder(Encoder):
    """An encoder of a few words, whose vectors are of length 1."""

    identity, dimension, normalize = "an encoder", 5, True

    def word_embeddings(self) -> tuple[tuple[str, ...], np.ndarray]:
        return WORDS, np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)

    def encode(self, texts: Any) -> np.ndarray:
        rows = [np.random.default_rng([*text.encode(), 1]).normal(size=5) for text in texts]
        vectors = np.array(rows, np.float32).reshape(-1, 5)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def network(seed: int = 0, columns: int = len(FEATURES), hidden: int = 4) -> Network:
    """A network of random weights."""
    rng = np.random.default_rng(seed)
    shapes = ((columns,), (columns,), (columns, hidden), (hidden,), (hidden,), (columns,))
    return Network(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))


def column(name: str, names: Sequence[str] = FEATURES) -> Network:
    """A network whose output is one of these features, between -4 and 4."""
    zeros = Network(*(np.zeros_like(array) for array in network(columns=len(names))))
    one = (np.array(names) == name).astype(np.float32)
    return zeros._replace(scale=one, linear=one)


def light_model(encoder: str = "an encoder", **changes: Any) -> LightModel:
    """A re-ranker of three hits by random weights."""
    parts: dict[str, Any] = {
        "candidates": 3,
        "network": network(),
        "frequencies": Frequencies.count(["what is the price of a car", "what is a car"]),
    }
    return LightModel(encoder, **(parts | changes))


def pair_calibration(
    encoder: str = "an encoder",
    light: LightModel | None = None,
    middle: float = 2.0,
    **changes: Any,
) -> PairCalibration:
    """Probability .5 at a squared distance of `middle`; with a re-ranker, less for other words."""
    words = symmetric(np.zeros((1, len(FEATURES)))).shape[1] if light else 0
    weights = np.zeros(inputs_of(2 + words))
    weights[1], weights[2 : 2 + words] = -2, np.random.default_rng(0).normal(0, 0.2, words)
    known = PairCalibration(
        encoder, 4.0, np.zeros(2 + words), np.ones(2 + words), weights, 2.0 * middle
    )
    return dataclasses.replace(known, reranker=light.identity if light else "", **changes)
