"""The encoder in JAX, with tokens that are sums of rows; see `tests/encoders/test_contract.py`."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from qpr_jax.models.cnn import ConvEncoder, Pooling, conv_max_pool, convolves
from qpr_jax.text.vocabulary import Vocabulary
from qpr_jax.training.batches import plan_layout
from tests.encoders.examples import WORDS, as_cnn, encode_rows, padded

VOCABULARY = Vocabulary(WORDS, bins=30, subwords=True)
QUESTIONS = [
    "",
    "what is the best zebra",
    "zebra",
    "how okapi how zebra okapi quagga a",
    "learn python quickly",
    "abababab abababab",  # rows several times
    "sm-g991b way_x9",
]
TOKENS = VOCABULARY.token_ids(QUESTIONS)
IDS, PARTS = TOKENS.padded(), TOKENS.parts
WEIGHTS = jnp.asarray(np.random.default_rng(0).normal(size=(len(QUESTIONS), 4)), jnp.float32)


@pytest.fixture(params=["cpu", "tpu"], autouse=True)
def platform(request, monkeypatch):
    """Tables or a convolution."""
    monkeypatch.setattr(jax, "default_backend", lambda: request.param)
    return request.param


def make(**changes):
    sizes = {"vocabulary_size": VOCABULARY.size, "embedding_dim": 6, "filters": 7, "output_dim": 4}
    settings = {"kernel_sizes": (3, 4), "bag_of_words": True} | changes
    model = ConvEncoder(rngs=nnx.Rngs(0), **sizes, **settings)
    model.biases[0][...] = jnp.linspace(-1, 1, 7)
    return model


def batch_of_all():
    """All questions on one device, and the ids of the rows of its part of the table."""
    layout = plan_layout(
        lambda step: IDS[None], steps=1, vocabulary_size=VOCABULARY.size, parts=PARTS
    )
    return layout.pad(IDS[None])


def encode(model, batch, chunk=0):
    """The vectors by the part of the table that a step reads."""
    tokens, order = batch
    found = model.encode_blocks(tokens.unique_ids, tokens.blocks, chunk=chunk, sums=tokens.sums)
    return found[order[0]]


def dense(params, graph):
    """The vectors with a row of the table for each sum, which a matrix product computes."""
    model = nnx.merge(graph, params)
    table = model.embedding[...].at[0].set(0)
    rows = np.zeros((PARTS.tokens, VOCABULARY.size), np.float32)
    tokens = np.repeat(np.arange(PARTS.tokens), np.diff(PARTS.offsets))
    np.add.at(rows, (tokens, PARTS.rows), 1)
    sums = jnp.matmul(rows, table, precision="highest")
    most = 0.1 * np.sqrt(table.shape[1]) * PARTS.limits[:, None]
    norms = jnp.linalg.norm(sums, axis=1, keepdims=True)
    sums = jnp.where(norms > most, sums * most / norms, sums)
    model.embedding = nnx.Param(jnp.concatenate([table, sums]))
    return encode_rows(model, jnp.asarray(IDS))


@pytest.mark.parametrize(
    "changes",
    [
        {"bag_of_words": False, "normalize": True},
        *({"kernel_sizes": sizes} for sizes in ((3, 4), (6, 1), (11, 5), (2, 4))),
    ],
)
def test_vectors_are_those_of_the_encoder_without_jax(changes):
    model, batch = make(**changes), batch_of_all()
    assert batch[0].sums is not None
    found = nnx.jit(lambda model: encode(model, batch))(model)
    np.testing.assert_allclose(found, as_cnn(model, VOCABULARY).encode(QUESTIONS), atol=2e-6)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, "HIGHEST"), ({"precision": "high"}, "HIGH"), ({"compute_dtype": "bfloat16"}, "DEFAULT")],
)
def test_a_convolution_has_the_precision_of_the_products(changes, expected, platform):
    model, batch = make(**changes), batch_of_all()
    text = jax.jit(lambda: encode(model, batch)).lower().as_text()
    found = re.findall(r"stablehlo\.convolution.*?precision (\w+)", text)
    assert found == [expected] * 2 * len(batch[0].blocks) * (platform == "tpu")


@pytest.mark.parametrize("chunk", [0, 3])
def test_gradients_are_those_of_a_table_with_a_row_for_each_sum(chunk):
    graph, params = nnx.split(make())
    batch = batch_of_all()

    def ours(params):
        return (WEIGHTS * encode(nnx.merge(graph, params), batch, chunk)).sum()

    def plain(params):
        return (WEIGHTS * dense(params, graph)).sum()

    (expected, slow), (value, fast) = (
        jax.jit(jax.value_and_grad(f))(params) for f in (plain, ours)
    )
    assert float(value) == pytest.approx(float(expected), abs=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-6), fast, slow)
    table = np.asarray(fast.embedding[...])
    assert not table[0].any()
    used = IDS[IDS > 0]
    read = np.union1d(PARTS.rows, used[used < VOCABULARY.size])
    assert table[read].any(axis=1).all()
    assert not np.delete(table, read, axis=0).any()


def maxima(table, ids, size, chunk=0, max_scores=1 << 23):
    """The maxima of a table's sums, or of the convolution that has the same products."""

    def head(_, maxima, __):
        return maxima[0]

    how = Pooling(head, (size,), chunk, max_scores, "highest" if convolves() else "")
    source = [table]
    if convolves():
        kernel = table.reshape(-1, size, table.shape[1])
        source = jnp.eye(len(kernel)), [kernel]
    return conv_max_pool(how, source, None, (ids,))


# The last with tiles of three questions.
@pytest.mark.parametrize(("chunk", "scores"), [(0, 1 << 23), (3, 1 << 23), (0, 3 * 6 * 3)])
def test_gradient_of_the_maximum_is_that_of_plain_jax(chunk, scores):
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(9 * 5, 3)), jnp.float32).at[:5].set(0)
    ids = padded([[1, 2, 3, 4], [8], [5, 6], [7, 7, 1, 2, 3, 8]], 6)
    weight = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)

    def plain(table):
        shifted = jnp.pad(ids, ((0, 0), (2, 2)))
        terms = sum(table.reshape(9, 5, 3)[shifted[:, k : k + 6], k] for k in range(5))
        own = (ids > 0)[:, :, None]
        return (jnp.where(own, terms, -jnp.inf).max(axis=1) * weight).sum()

    def ours(table):
        return (maxima(table, ids, 5, chunk, scores) * weight).sum()

    (value, found), (expected, gradient) = (
        jax.jit(jax.value_and_grad(function))(table) for function in (ours, plain)
    )
    assert float(value) == pytest.approx(float(expected), abs=1e-6)
    np.testing.assert_allclose(found[5:], gradient[5:], atol=1e-6)


def test_where_positions_tie_the_gradient_goes_to_the_first_and_nothing_has_no_maximum():
    assert maxima(jnp.zeros((10, 3)), jnp.zeros((0, 4), jnp.int32), 5).shape == (0, 3)
    ids = padded([[1, 2]], 2)
    gradient = jax.grad(lambda table: maxima(table, ids, 1).sum())(jnp.ones((3, 1)))
    assert gradient[:, 0].tolist() == [0, 1, 0]


def test_in_chunks_memory_does_not_grow_with_the_questions():
    table = jax.ShapeDtypeStruct((100 * 5, 64), jnp.float32)

    def total(table, ids, chunk):
        return maxima(table, ids, 5, chunk).sum()

    def temporaries(questions, chunk):
        ids = jax.ShapeDtypeStruct((questions, 12), jnp.int32)
        lowered = jax.jit(jax.grad(total), static_argnums=2).lower(table, ids, chunk)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    more = temporaries(4096, 64) - temporaries(2048, 64)
    assert more < 2048 * 4 * (64 + 12) * 1.5  # the result and the tokens of a question
    assert temporaries(4096, 64) < temporaries(4096, 0) / 3
