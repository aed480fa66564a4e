"""Encoders whose products have 16 bits, against float32."""

import dataclasses

import numpy as np
import pytest

from qpr_jax.encoders.folded_tables import FoldedTables
from qpr_jax.encoders.load import read_encoder, save_encoder
from qpr_jax.errors import UserError
from qpr_jax.retriever import Retriever
from qpr_jax.text.vocabulary import Vocabulary
from tests.encoders.examples import QUESTIONS, TINY, VOCABULARY, WORDS, cnn_encoder, cnn_weights
from tests.parts import make_parts

SUBWORDS = dataclasses.replace(VOCABULARY, subwords=True)
UNKNOWN = [*QUESTIONS, "what is the best zebra", "zebra zebra zebra"]
LONG = "straßenlaternenpfahl " * 9  # the sum of its n-grams exceeds the limits


@pytest.fixture(params=["maxima", "bag_of_words", "normalize", "wide_windows"])
def encoder(request):
    sizes = {"sizes": (6, 1)} if request.param == "wide_windows" else {}
    weights = cnn_weights(bag_of_words=request.param == "bag_of_words", **sizes)
    found = cnn_encoder(normalize=request.param == "normalize", **weights)
    return dataclasses.replace(found, vocabulary=SUBWORDS)


def in_half(encoder):
    return dataclasses.replace(encoder, half=True)


def assert_close(vectors, expected):
    exact = expected.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(exact, axis=1)
    assert ((vectors * exact).sum(axis=1) / lengths).min() > 0.99999


def test_vectors_are_those_of_full_precision_but_for_rounding(encoder):
    # A word that is the sum of twelve n-grams in four bins is longer than any of a real vocabulary.
    encoder = dataclasses.replace(encoder, vocabulary=VOCABULARY)
    vectors, expected = in_half(encoder).encode(UNKNOWN), encoder.encode(UNKNOWN)
    assert_close(vectors, expected)
    assert not np.array_equal(vectors, expected)
    np.testing.assert_allclose(vectors, expected, atol=5e-3)


def test_any_batch_order_chunk_and_thread_gives_the_same_bits(encoder, monkeypatch):
    texts = [*UNKNOWN, LONG]
    together = in_half(encoder).encode(texts)
    assert np.isfinite(together).all()
    fresh = in_half(encoder)
    alone = np.concatenate([fresh.encode([question]) for question in texts[::-1]])[::-1]
    np.testing.assert_array_equal(alone, together)
    ids, _, parts = SUBWORDS.token_ids(texts * 20, encoder.max_tokens)
    monkeypatch.setattr("qpr_jax.encoders.cnn_encoder._CHUNK", 7)
    monkeypatch.setattr("qpr_jax.encoders.cnn_encoder.cpu_count", lambda: 8)
    np.testing.assert_array_equal(fresh.encode(texts * 20), np.tile(together, (20, 1)))
    np.testing.assert_array_equal(fresh.encode_ids(ids, parts), np.tile(together, (20, 1)))


def test_batch_never_changes_a_vector_of_full_size():
    rng = np.random.default_rng(0)
    vocabulary = Vocabulary(WORDS, bins=500, subwords=True)
    plain = cnn_encoder(
        embedding=0.3 * rng.normal(size=(vocabulary.size, 300)),
        kernels=[0.05 * rng.normal(size=(window, 300, 300)) for window in (1, 3, 5)],
        biases=[0.1 * rng.normal(size=300) for _ in range(3)],
        projection=0.06 * rng.normal(size=(900, 384)),
    )
    encoder = dataclasses.replace(plain, vocabulary=vocabulary, half=True)
    letters = np.array([*"abcdefgh"])
    words = [*WORDS, *("".join(rng.choice(letters, size=n)) for n in rng.integers(1, 12, 40))]
    questions = [" ".join(rng.choice(words, size=n)) for n in rng.integers(0, 20, size=100)]
    together = encoder.encode(questions)
    fresh = dataclasses.replace(encoder)
    alone = np.concatenate([fresh.encode([question]) for question in questions[::-1]])
    np.testing.assert_array_equal(alone[::-1], together)
    assert_close(together, dataclasses.replace(encoder, half=False).encode(questions))


@pytest.mark.parametrize("window", [1, 2, 3, 5, 6, 11])
def test_the_largest_products_fit(window):
    """Each position has the row that its filter likes most: the sums are the largest of all."""
    rng = np.random.default_rng(window)
    rows = rng.normal(size=(window, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    sizes = rng.uniform(0.1, 2, size=(window, 1, 1)).astype(np.float32)
    embedding = np.concatenate([np.zeros((1, 8), np.float32), rows])
    kernel = np.concatenate([sizes * rows[:, :, None], -sizes * rows[:, :, None]], axis=2)
    tables = FoldedTables(embedding, [kernel, np.zeros((1, 8, 3), np.float32)], largest_norm=1)
    tables.compute(np.arange(len(embedding)))
    table, zeros = tables.tables
    assert table.dtype == np.int16
    own = table[1 + np.arange(window), np.arange(window)].astype(int).sum(axis=0)
    assert own[0] == -own[1]
    assert 2**15 - 4 * window - 2 <= own[0] < 2**15
    np.testing.assert_allclose(tables.scales[:2] * own, sizes.sum() * np.array([1, -1]), rtol=2e-3)
    assert not table[0].any()
    assert not zeros[: len(embedding)].any()
    assert np.isfinite(tables.scales).all()


def test_a_sum_of_rows_is_exact_up_to_the_limit_and_shrunk_to_it(encoder):
    half = in_half(encoder)
    half.warm_up()
    tables = half._tables
    for number, table in enumerate(tables.tables):
        few, many = tables.sums(number, make_parts([[1, 2], [1, 2] * 1000]))
        limits = tables._limits[number]
        exact = table[1].astype(int) + table[2]
        np.testing.assert_array_equal(few, exact)
        share = np.abs(exact / limits).max()
        np.testing.assert_allclose(many, exact / share, atol=0.5 + 1e-3)
        assert (np.abs(many) == limits).any()


def test_added_words_leave_the_bits_of_other_texts(encoder):
    rows = 100 * np.ones((2, 6), np.float32)  # of larger norms than all others
    vocabulary = dataclasses.replace(SUBWORDS, added=("zebra", "okapi"))
    half = in_half(encoder)
    grown = half.with_words(vocabulary, rows, {})
    assert grown.half
    others = [text for text in UNKNOWN if "zebra" not in text]
    np.testing.assert_array_equal(grown.encode(others), half.encode(others))
    assert np.isfinite(grown.encode(["what zebra okapi"])).all()


def test_it_takes_half_the_memory_and_keeps_identity_and_files(encoder):
    half = in_half(encoder)
    half.warm_up()
    pairs = zip(half._tables.tables, encoder._tables.tables, strict=True)
    assert all(2 * table.nbytes == full.nbytes for table, full in pairs)
    assert half.identity == encoder.identity
    assert half.files() == encoder.files()


def test_an_index_of_full_precision_is_opened(tmp_path):
    encoder = cnn_encoder(normalize=True)
    save_encoder(tmp_path / "run" / "export", encoder)
    questions = [text for text in QUESTIONS if text]
    Retriever.build(questions, run=tmp_path / "run").save(tmp_path / "mine")
    store = Retriever.load(tmp_path / "mine").store
    half = Retriever(read_encoder(tmp_path / "mine" / "export", half=True), store)
    hits, expected = (
        half.search(questions, 3),
        Retriever.load(tmp_path / "mine").search(questions, 3),
    )
    assert [[hit.id for hit in found] for found in hits] == [
        [hit.id for hit in found] for found in expected
    ]
    half.save(tmp_path / "again")
    again = read_encoder(tmp_path / "again" / "export")
    assert again.identity == encoder.identity
    np.testing.assert_array_equal(again.encode(questions), encoder.encode(questions))
    assert read_encoder(tmp_path / "mine" / "export", half=True).half


def test_a_transformer_is_refused():
    with pytest.raises(UserError, match=r"convolutional encoder for half precision.*leave `half`"):
        read_encoder(TINY, half=True)
