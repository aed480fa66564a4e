"""Small encoders and questions that tests share."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.models.cnn import ConvEncoder
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import Vocabulary

TINY = pathlib.Path(__file__).parent / "tiny_bert"
WORDS = tuple(tokenize("what is the best way to learn python how can i quickly"))
VOCABULARY = Vocabulary(WORDS, bins=4)
SUBWORDS = dataclasses.replace(VOCABULARY, subwords=True)
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


def cnn_encoder(
    *, vocabulary=VOCABULARY, max_tokens=20, settings=None, normalize=False, **changed
) -> CnnEncoder:
    weights = cnn_weights() | changed
    embedding = np.array(weights["embedding"], np.float32)
    embedding[0] = 0
    return CnnEncoder(
        embedding=embedding,
        kernels=tuple(np.ascontiguousarray(kernel, np.float32) for kernel in weights["kernels"]),
        biases=tuple(np.asarray(bias, np.float32) for bias in weights["biases"]),
        projection=np.asarray(weights["projection"], np.float32),
        vocabulary=vocabulary,
        max_tokens=max_tokens,
        settings={"a": 1} if settings is None else settings,
        normalize=normalize,
    )


def encode_rows(model, token_ids):
    """The vectors of token ids [n, L], zero-padded, in one block with a row for each token."""
    unique_ids = jnp.concatenate([jnp.zeros(1, token_ids.dtype), token_ids.ravel()])
    rows = jnp.arange(1, token_ids.size + 1, dtype=jnp.int32).reshape(token_ids.shape)
    return model.encode_blocks(unique_ids, [jnp.where(token_ids > 0, rows, 0)])


def as_cnn(model: ConvEncoder, vocabulary: Vocabulary) -> CnnEncoder:
    """The encoder without JAX of a model in Flax."""
    return cnn_encoder(
        vocabulary=vocabulary,
        embedding=model.embedding[...],
        kernels=[np.asarray(kernel[...]).transpose(1, 0, 2) for kernel in model.kernels],
        biases=[bias[...] for bias in model.biases],
        projection=model.projection[...],
        normalize=model.normalize,
    )


def reference(encoder: CnnEncoder, ids: list[int]) -> np.ndarray:
    """Equation (1) token by token, in float64."""
    features = []
    for kernel, bias in zip(encoder.kernels, encoder.biases, strict=True):
        window = len(kernel)
        positions = []
        for i in range(max(len(ids), 1)):
            h = bias.astype(np.float64)
            for k in range(window):
                at = i - window // 2 + k
                if 0 <= at < len(ids):
                    h = h + encoder.embedding[ids[at]].astype(np.float64) @ kernel[k]
            positions.append(np.tanh(h))
        features.append(np.max(positions, axis=0))
    if len(encoder.projection) > sum(len(bias) for bias in encoder.biases):
        features.append(encoder.embedding[ids].sum(axis=0) / np.sqrt(max(len(ids), 1)))
    vector = np.concatenate(features) @ encoder.projection.astype(np.float64)
    return vector / np.linalg.norm(vector) if encoder.normalize else vector


def with_rows_of_sums(encoder, parts):
    """The encoder with one more row for each token that is a sum, in float64."""
    table = encoder.embedding.astype(np.float64)
    sums = []
    for start, stop, limit in zip(parts.offsets, parts.offsets[1:], parts.limits, strict=False):
        row = table[parts.rows[start:stop]].sum(axis=0)
        most = 0.1 * np.sqrt(table.shape[1]) * limit
        sums.append(row * min(1, most / np.linalg.norm(row)) if row.any() else row)
    return dataclasses.replace(encoder, embedding=np.stack([*table, *sums]))
