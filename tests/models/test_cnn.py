import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from qpr_jax.models.cnn import ConvEncoder
from tests.encoders.examples import padded


def make(kernel_sizes=(5,), **changes):
    settings = {"vocabulary_size": 40, "embedding_dim": 6, "filters": 7, "output_dim": 4} | changes
    return ConvEncoder(kernel_sizes=kernel_sizes, rngs=nnx.Rngs(0), **settings)


encode = nnx.jit(lambda encoder, token_ids: encoder(token_ids))


def slow(encoder, question):
    """Equation (1) token by token, in float64: zeros beyond the ends, tanh before the maximum."""
    embedding = np.asarray(encoder.embedding[...], np.float64)
    features = []
    for kernel, bias in zip(encoder.kernels, encoder.biases, strict=True):
        kernel, bias = np.asarray(kernel[...], np.float64), np.asarray(bias[...], np.float64)
        window = kernel.shape[1]
        length = max(len(question), 1)
        outputs = np.tile(bias, (length, 1))
        for i in range(length):
            for k in range(window):
                at = i - window // 2 + k
                if 0 <= at < len(question):
                    outputs[i] += embedding[question[at]] @ kernel[:, k]
        features.append(np.tanh(outputs).max(axis=0))
    if encoder.bag_of_words:
        features.append(embedding[question].sum(axis=0) / np.sqrt(max(len(question), 1)))
    vector = np.concatenate(features) @ np.asarray(encoder.projection[...], np.float64)
    return vector / np.linalg.norm(vector) if encoder.normalize else vector


QUESTIONS = [[], [3], [39, 1], [5, 5, 5, 5, 5], [7, 8, 9, 7, 8, 9, 7, 8, 9, 10, 11]]


@pytest.mark.parametrize(
    ("kernel_sizes", "bag_of_words", "normalize"),
    [((5,), False, False), ((1,), True, False), ((4,), False, True), ((3, 5), True, True)],
)
def test_it_is_the_convolution_of_equation_1(kernel_sizes, bag_of_words, normalize):
    encoder = make(kernel_sizes, bag_of_words=bag_of_words, normalize=normalize)
    encoder.biases[0][...] = jnp.linspace(-1, 1, 7)
    expected = np.stack([slow(encoder, question) for question in QUESTIONS])
    np.testing.assert_allclose(encode(encoder, padded(QUESTIONS, 11)), expected, atol=1e-6)


def test_the_embedding_of_padding_is_never_seen_nor_trained():
    encoder, token_ids = make(bag_of_words=True), padded(QUESTIONS, 12)
    before = encode(encoder, token_ids)
    encoder.embedding[...] = encoder.embedding[...].at[0].set(100.0)
    np.testing.assert_array_equal(encode(encoder, token_ids), before)
    gradient = nnx.jit(nnx.grad(lambda encoder: encoder(token_ids).sum()))(encoder)
    assert not np.asarray(gradient.embedding[...])[0].any()
    assert np.asarray(gradient.embedding[...])[5].any()
