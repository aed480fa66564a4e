"""What is particular to the convolutional encoder; see `test_contract.py` for the rest."""

import dataclasses

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.text.base import NO_PARTS
from qpr_jax.text.vocabulary import Vocabulary, vocabulary_to_bytes
from tests.encoders.examples import (
    QUESTIONS,
    VOCABULARY,
    WORDS,
    cnn_encoder,
    cnn_weights,
    reference,
)
from tests.parts import make_parts


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


def test_summary():
    summary = cnn_encoder().summary()
    assert (summary.library, summary.vocabulary_size, summary.words) == ("qpr_jax", 17, WORDS)
    assert "windows of 3, 4 words, 7 filters, embeddings of 6" in summary.description
    subwords = dataclasses.replace(cnn_encoder(), vocabulary=SUBWORDS).summary()
    for found in (summary, subwords):
        assert "It knows 12 words" in found.limits[0]
        assert "reads at most 20 of" in found.limits[1]
    assert summary.limits != subwords.limits


SUBWORDS = dataclasses.replace(VOCABULARY, subwords=True)
UNKNOWN = [
    *QUESTIONS,
    "what is the best zebra",
    "zebra zebra zebra",
    "quagga",
    "okapi quickly LEARN zebra leärn",
    "straßenlaternenpfahl " * 9,
    "\ud800 é \ud800",
]


@pytest.fixture(params=[False, True])
def encoder(request):
    found = cnn_encoder(**cnn_weights(bag_of_words=request.param))
    return dataclasses.replace(found, vocabulary=SUBWORDS)


@pytest.mark.parametrize(("bag_of_words", "filters"), [(True, 300), (False, 600)])
def test_batch_never_changes_a_vector_of_full_size(bag_of_words, filters):
    rng = np.random.default_rng(0)
    vocabulary = Vocabulary(WORDS, bins=500, subwords=True)
    encoder = dataclasses.replace(
        cnn_encoder(
            embedding=0.3 * rng.normal(size=(vocabulary.size, 300)),
            kernels=[0.05 * rng.normal(size=(5, 300, filters))],
            biases=[0.1 * rng.normal(size=filters)],
            projection=0.06 * rng.normal(size=(filters + 300 * bag_of_words, 300)),
        ),
        vocabulary=vocabulary,
    )
    letters = np.array([*"abcdefgh"])
    words = [*WORDS, *("".join(rng.choice(letters, size=n)) for n in rng.integers(1, 12, 40))]
    questions = [" ".join(rng.choice(words, size=n)) for n in rng.integers(0, 20, size=100)]
    together = encoder.encode(questions)
    fresh = dataclasses.replace(encoder)
    alone = np.concatenate([fresh.encode([question]) for question in questions[::-1]])
    np.testing.assert_array_equal(alone[::-1], together)
    ids, _, parts = vocabulary.token_ids(questions, encoder.max_tokens)
    np.testing.assert_array_equal(encoder.encode_ids(ids, parts), together)


def test_ids_without_a_row_are_refused(encoder):
    rows = len(encoder.embedding)
    for parts in (NO_PARTS, make_parts([[1], [2]])):
        for id in (-1, rows + parts.tokens):
            with pytest.raises(UserError, match=f"ids from 0 to {rows + parts.tokens - 1}"):
                encoder.encode_ids(np.array([[1, id]]), parts)


def test_added_words_have_rows_of_their_own(encoder):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(2, 6)).astype(np.float32)
    grown = dataclasses.replace(
        encoder,
        embedding=np.concatenate([encoder.embedding, rows]),
        vocabulary=dataclasses.replace(SUBWORDS, added=("zebra", "okapi")),
    )
    # Other words, known or not, have the bits that they had.
    others = [text for text in UNKNOWN if "zebra" not in text and "okapi" not in text]
    np.testing.assert_array_equal(grown.encode(others), encoder.encode(others))
    expected = reference(grown, [1, SUBWORDS.size, SUBWORDS.size + 1])
    np.testing.assert_allclose(grown.encode(["what zebra okapi"])[0], expected, atol=2e-6)
    # So has another spelling of an added word.
    spelled = ["what zébra ökapi"]
    np.testing.assert_array_equal(grown.encode(spelled), encoder.encode(spelled))
    words, vectors = grown.word_embeddings()
    assert words == (*WORDS, "zebra", "okapi")
    expected = [*encoder.embedding[1 : 1 + len(WORDS)], *rows]
    np.testing.assert_array_equal(vectors, expected)


def test_an_encoder_without_subwords_keeps_files_and_identity(encoder):
    """So that indexes built with it stay valid."""
    plain = dataclasses.replace(cnn_encoder(), vocabulary=VOCABULARY)
    assert plain.identity == "cb4d93828fc1ed97d419a48f107cbd72f7795102771a5a44bacbf3ef1f009945"
    assert plain.files()["vocabulary.json"] == vocabulary_to_bytes(VOCABULARY)
    assert b"subwords" not in plain.files()["vocabulary.json"]
    others = [
        dataclasses.replace(encoder, vocabulary=v)
        for v in (VOCABULARY, SUBWORDS, dataclasses.replace(SUBWORDS, added=("b",)))
    ]
    assert len({other.identity for other in others}) == 3
