"""Small encoders and questions that tests share."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import Vocabulary

TINY = pathlib.Path(__file__).parent / "tiny_bert"
WORDS = tuple(tokenize("what is the best way to learn python how can i quickly"))
VOCABULARY = Vocabulary(WORDS, bins=4)
QUESTIONS = [
    "what is the best way to learn python",
    "",
    "how",
    "how can i learn python quickly",
    "zebra quagga okapi",
    "python " * 30,
]


def padded(questions: list[list[int]], width: int) -> jax.Array:
    """Token ids [questions, width], padded with zeros."""
    return jnp.asarray([question + [0] * (width - len(question)) for question in questions])


def cnn_weights(sizes=(3, 4), filters=(5, 2), seed=0, bag_of_words=False):
    rng = np.random.default_rng(seed)
    features = sum(filters) + 6 * bag_of_words
    shapes = list(zip(sizes, filters, strict=True))
    return {
        "embedding": rng.normal(size=(VOCABULARY.size, 6)).astype(np.float32),
        "kernels": [0.3 * rng.normal(size=(w, 6, f)).astype(np.float32) for w, f in shapes],
        "biases": [rng.normal(size=f).astype(np.float32) for _, f in shapes],
        "projection": 0.4 * rng.normal(size=(features, 7)).astype(np.float32),
    }


def cnn_encoder(*, max_tokens=20, settings=None, normalize=False, **changed) -> CnnEncoder:
    weights = cnn_weights() | changed
    embedding = np.array(weights["embedding"], np.float32)
    embedding[0] = 0
    return CnnEncoder(
        embedding=embedding,
        kernels=tuple(np.asarray(kernel, np.float32) for kernel in weights["kernels"]),
        biases=tuple(np.asarray(bias, np.float32) for bias in weights["biases"]),
        projection=np.asarray(weights["projection"], np.float32),
        vocabulary=VOCABULARY,
        max_tokens=max_tokens,
        settings=settings or {"a": 1},
        normalize=normalize,
    )
