"""Encoders whose unknown words are sums of rows, against the equation in float64."""

import dataclasses

import numpy as np
import pytest

from qpr_jax.encoders import cnn_format
from qpr_jax.encoders.load import read_encoder, save_encoder
from qpr_jax.errors import UserError
from qpr_jax.text.base import NO_PARTS
from qpr_jax.text.vocabulary import Vocabulary, vocabulary_to_bytes
from tests.encoders.examples import QUESTIONS, VOCABULARY, WORDS, cnn_encoder, cnn_weights
from tests.encoders.test_cnn_encoder import reference
from tests.parts import make_parts

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


@pytest.fixture(params=["maxima", "bag_of_words", "normalize", "wide_windows"])
def encoder(request):
    sizes = {"sizes": (6, 1)} if request.param == "wide_windows" else {}
    weights = cnn_weights(bag_of_words=request.param == "bag_of_words", **sizes)
    found = cnn_encoder(normalize=request.param == "normalize", **weights)
    return dataclasses.replace(found, vocabulary=SUBWORDS)


def with_rows_of_sums(encoder, parts):
    """The encoder with one more row for each token that is a sum, in float64."""
    bounds = zip(parts.offsets[:-1], parts.offsets[1:], strict=True)
    table = encoder.embedding.astype(np.float64)
    sums = [table[parts.rows[a:b]].sum(axis=0) for a, b in bounds]
    return dataclasses.replace(encoder, embedding=np.stack([*table, *sums]))


def test_an_unknown_word_has_the_sum_of_the_rows_of_its_n_grams(encoder):
    ids, _, parts = SUBWORDS.token_ids(UNKNOWN, encoder.max_tokens)
    assert parts.tokens >= 5
    plain = with_rows_of_sums(encoder, parts)
    expected = np.stack([reference(plain, row[row > 0].tolist()) for row in ids])
    np.testing.assert_allclose(encoder.encode(UNKNOWN), expected, rtol=1e-5, atol=4e-6)


def test_ids_with_parts_give_the_vectors_of_the_texts(encoder):
    expected = encoder.encode(UNKNOWN)
    ids, _, parts = SUBWORDS.token_ids(UNKNOWN, encoder.max_tokens)
    np.testing.assert_array_equal(encoder.encode_ids(ids, parts), expected)
    # Further tokens that no question has change nothing, nor do others' ids.
    more = make_parts([[3], [1, 2]]).joined(parts)
    shifted = np.where(ids >= SUBWORDS.size, ids + 2, ids)
    np.testing.assert_array_equal(encoder.encode_ids(shifted, more), expected)


def test_any_batch_order_chunk_and_thread_gives_the_same_bits(encoder, monkeypatch):
    together = encoder.encode(UNKNOWN)
    fresh = dataclasses.replace(encoder)
    alone = np.concatenate([fresh.encode([question]) for question in UNKNOWN[::-1]])[::-1]
    np.testing.assert_array_equal(alone, together)
    ids, _, parts = SUBWORDS.token_ids(UNKNOWN * 20, encoder.max_tokens)
    monkeypatch.setattr("qpr_jax.encoders.cnn_encoder._CHUNK", 7)
    monkeypatch.setattr("qpr_jax.encoders.cnn_encoder.cpu_count", lambda: 8)
    np.testing.assert_array_equal(encoder.encode(UNKNOWN * 20), np.tile(together, (20, 1)))
    np.testing.assert_array_equal(encoder.encode_ids(ids, parts), np.tile(together, (20, 1)))


@pytest.mark.parametrize("bag_of_words", [False, True])
def test_batch_never_changes_a_vector_of_full_size(bag_of_words):
    rng = np.random.default_rng(0)
    vocabulary = Vocabulary(WORDS, bins=500, subwords=True)
    encoder = dataclasses.replace(
        cnn_encoder(
            embedding=0.3 * rng.normal(size=(vocabulary.size, 300)),
            kernels=[0.05 * rng.normal(size=(5, 300, 300))],
            biases=[0.1 * rng.normal(size=300)],
            projection=0.06 * rng.normal(size=(300 * (1 + bag_of_words), 300)),
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


def test_a_token_of_one_row_is_that_row(encoder):
    plain = encoder.encode_ids(np.array([[1, 2], [2, 0]]))
    parts = make_parts([[2], [1]])
    first, second = len(encoder.embedding), len(encoder.embedding) + 1
    sums = encoder.encode_ids(np.array([[second, first], [first, 0]]), parts)
    np.testing.assert_array_equal(sums, plain)


def test_a_token_of_no_row_has_zeros(encoder):
    parts, sum_of_none = make_parts([[]]), len(encoder.embedding)
    ids = np.array([[1, sum_of_none, 2]])
    expected = reference(with_rows_of_sums(encoder, parts), ids[0].tolist())
    np.testing.assert_allclose(encoder.encode_ids(ids, parts)[0], expected, atol=2e-6)


def test_ids_beyond_the_parts_are_refused(encoder):
    rows = len(encoder.embedding)
    for parts in (NO_PARTS, make_parts([[1], [2]])):
        ids = np.array([[rows + parts.tokens]])
        with pytest.raises(UserError, match=f"expected ids from 0 to {rows + parts.tokens - 1}"):
            encoder.encode_ids(ids, parts)


def test_known_spellings_have_the_vector_of_the_word(encoder):
    plain, accents = encoder.encode(["learn python quickly", "Leärn PYTHÖN quìckly"])
    np.testing.assert_array_equal(accents, plain)


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


def test_written_and_read(encoder, tmp_path):
    grown = dataclasses.replace(
        encoder,
        embedding=np.concatenate([encoder.embedding, np.ones((1, 6), np.float32)]),
        vocabulary=dataclasses.replace(SUBWORDS, added=("zebra",)),
    )
    for number, written in enumerate((encoder, grown)):
        folder = tmp_path / str(number)
        save_encoder(folder, written)
        read = read_encoder(folder)
        assert read.identity == written.identity
        assert read.vocabulary == written.vocabulary
        np.testing.assert_array_equal(read.encode(UNKNOWN), written.encode(UNKNOWN))


def test_an_encoder_without_subwords_keeps_files_and_identity(encoder):
    """So that indexes built with it stay valid."""
    plain = dataclasses.replace(cnn_encoder(), vocabulary=VOCABULARY)
    assert plain.identity == "cb4d93828fc1ed97d419a48f107cbd72f7795102771a5a44bacbf3ef1f009945"
    assert cnn_format.identity_of(plain._parts()) == plain.identity
    assert plain.files()["vocabulary.json"] == vocabulary_to_bytes(VOCABULARY)
    assert b"subwords" not in plain.files()["vocabulary.json"]
    others = [
        dataclasses.replace(encoder, vocabulary=v)
        for v in (VOCABULARY, SUBWORDS, dataclasses.replace(SUBWORDS, added=("b",)))
    ]
    assert len({other.identity for other in others}) == 3
