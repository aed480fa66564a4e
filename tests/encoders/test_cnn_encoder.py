import dataclasses
import itertools

import numpy as np
import pytest

from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.errors import UserError
from qpr_jax.text.base import as_texts
from tests.encoders.examples import QUESTIONS, VOCABULARY, WORDS, cnn_encoder, cnn_weights


@pytest.fixture(params=["maxima", "bag_of_words", "normalize"])
def encoder(request) -> CnnEncoder:
    weights = cnn_weights(bag_of_words=request.param == "bag_of_words")
    return cnn_encoder(normalize=request.param == "normalize", **weights)


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


def test_hand_worked_vector():
    # Embeddings of one number ("what" 1, "is" 2), window 2: position i sees words i - 1 and i.
    embedding = np.zeros((VOCABULARY.size, 1), np.float32)
    embedding[1:3, 0] = 1, 2
    encoder = cnn_encoder(
        embedding=embedding,
        kernels=[np.array([[[0.1]], [[-0.2]]], np.float32)],
        biases=[np.array([0.5], np.float32)],
        projection=np.array([[2.0, -1.0]], np.float32),
    )
    # "what is": positions give -0.2 * 1 and 0.1 * 1 - 0.2 * 2; the first is larger.
    peak = np.tanh(0.5 - 0.2)
    np.testing.assert_allclose(encoder.encode(["what is"]), [[2 * peak, -peak]], rtol=1e-6)
    empty = np.tanh(0.5)
    np.testing.assert_allclose(encoder.encode([""]), [[2 * empty, -empty]], rtol=1e-6)


def test_equals_the_equation_in_any_order(encoder):
    rng = np.random.default_rng(1)
    ids = [rng.integers(1, VOCABULARY.size, size=n).tolist() for n in rng.integers(0, 12, size=200)]
    token_ids = np.zeros((len(ids), 14), np.int32)
    for row, question in zip(token_ids, ids, strict=True):
        row[: len(question)] = question
    expected = np.stack([reference(encoder, question) for question in ids])
    np.testing.assert_allclose(encoder.encode_ids(token_ids), expected, atol=2e-6)


@pytest.mark.parametrize("window", [1, 2, 5, 6, 11])
def test_windows_of_any_width(window):
    encoder = cnn_encoder(**cnn_weights((window, 3), (9, 2)))
    flat, offsets, _, _ = VOCABULARY.flat_ids(QUESTIONS, 20)
    ids = [flat[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]
    expected = np.stack([reference(encoder, question) for question in ids])
    np.testing.assert_allclose(encoder.encode(QUESTIONS), expected, atol=2e-6)


def test_many_chunks_on_many_threads_change_nothing(encoder, monkeypatch):
    expected = encoder.encode(QUESTIONS * 50)
    monkeypatch.setattr("qpr_jax.encoders.cnn_encoder._CHUNK", 7)
    monkeypatch.setattr("qpr_jax.encoders.cnn_encoder.cpu_count", lambda: 8)
    np.testing.assert_array_equal(encoder.encode(QUESTIONS * 50), expected)


def test_padding_width_and_batch_never_change_a_vector(encoder):
    together = encoder.encode(QUESTIONS)
    for i, question in enumerate(QUESTIONS):
        alone = encoder.encode([question])[0]
        np.testing.assert_array_equal(alone, together[i])
        token_ids, _, _ = VOCABULARY.token_ids([question], 20)
        wide = encoder.encode_ids(np.pad(token_ids, ((0, 0), (0, 50))))[0]
        np.testing.assert_array_equal(wide, alone)


@pytest.mark.parametrize("filters", [300, 600])
def test_batch_never_changes_a_vector_of_full_size(filters):
    rng = np.random.default_rng(0)
    encoder = cnn_encoder(
        embedding=0.3 * rng.normal(size=(VOCABULARY.size, 300)),
        kernels=[0.05 * rng.normal(size=(5, 300, filters))],
        biases=[0.1 * rng.normal(size=filters)],
        projection=0.06 * rng.normal(size=(filters, 300)),
    )
    questions = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(0, 20, size=300)]
    together = encoder.encode(questions)
    assert np.abs(together).max() > 1.5
    # Nor does it matter which tokens came first.
    fresh = dataclasses.replace(encoder)
    alone = np.concatenate([fresh.encode([question]) for question in questions[::-1]])
    np.testing.assert_array_equal(alone[::-1], together)


def test_padding_never_wins_the_maximum():
    # All scores are negative, so the zeros of padding would win if they counted.
    embedding = -np.ones((VOCABULARY.size, 1), np.float32)
    encoder = cnn_encoder(
        embedding=embedding,
        kernels=[np.ones((1, 1, 1), np.float32)],
        biases=[np.zeros(1, np.float32)],
        projection=np.ones((1, 1), np.float32),
    )
    vectors = encoder.encode(["what", "what is the best way", ""])
    np.testing.assert_allclose(vectors[:, 0], [np.tanh(-1), np.tanh(-1), 0], rtol=1e-6)


def test_shapes_and_truncated_questions(encoder):
    assert encoder.dimension == 7
    empty = encoder.encode([])
    assert empty.shape == (0, 7)
    assert empty.dtype == np.float32
    assert encoder.encode_ids(np.zeros((0, 3), np.int32)).shape == (0, 7)
    short, longer = encoder.encode(["python " * 20, "python " * 20 + "what is the"])
    np.testing.assert_array_equal(short, longer)


def test_odd_strings_have_vectors(encoder):
    odd = ["\x00", "\ud800", "🦓🦓", "سؤال", "é" * 1000, "a" * 1_000_000, "\r\n\t", "e\u0301"]
    vectors = encoder.encode(odd)
    assert vectors.shape == (len(odd), 7)
    assert np.isfinite(vectors).all()


def test_any_list_of_strings_will_do(encoder):
    expected = encoder.encode(QUESTIONS)
    np.testing.assert_array_equal(encoder.encode(tuple(QUESTIONS)), expected)
    np.testing.assert_array_equal(encoder.encode(np.array(QUESTIONS)), expected)


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ("what is", r"`questions`: expected a list of strings, got a str; pass \[questions\]"),
        (b"what is", "got a bytes"),
        ({"what": 1}, "got a dict"),
        (None, "expected a list of strings, got NoneType"),
        (7, "got int"),
        (["what", None], "expected strings, got NoneType at position 1; leave it out"),
        ([b"what"], "got bytes at position 0"),
        ([["what"]], "got list at position 0"),
        ([float("nan")], "got float at position 0"),
    ],
)
def test_other_values_than_lists_of_strings_are_refused(encoder, questions, message):
    with pytest.raises(UserError, match=message):
        encoder.encode(questions)
    with pytest.raises(UserError, match=message):
        as_texts(questions)


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        (np.zeros(3, np.int32), r"expected integers \[n, L\], got int32 \[3\]"),
        (np.zeros((2, 0), np.int32), r"got int32 \[2, 0\]"),
        (np.zeros((2, 3)), "got float64"),
        (np.array([[1, 17]]), "expected ids from 0 to 16, got 1 to 17"),
        (np.array([[-1, 0]]), "got -1 to 0"),
    ],
)
def test_wrong_token_ids_are_refused(encoder, token_ids, message):
    assert VOCABULARY.size == 17
    with pytest.raises(UserError, match=message):
        encoder.encode_ids(token_ids)


def test_summary():
    summary = cnn_encoder().summary()
    assert summary.library == "qpr_jax"
    assert "windows of 3, 4 words, 7 filters, embeddings of 6" in summary.description
    assert (summary.vocabulary_size, summary.words) == (17, WORDS)
    assert "It knows 12 words; others share 4 embeddings" in summary.limits[0]
    assert "order of words within 4 of them, and reads at most 20 of" in summary.limits[1]


def test_the_summary_says_what_unknown_words_are():
    vocabulary = dataclasses.replace(VOCABULARY, subwords=True)
    limit = dataclasses.replace(cnn_encoder(), vocabulary=vocabulary).summary().limits[0]
    assert "12 words; any other is the sum of its runs of 3 to 5 characters, which share 4" in limit
