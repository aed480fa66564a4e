"""What is particular to the convolutional encoder; see `test_contract.py` for the rest."""

import dataclasses
import json
import pathlib
import shutil
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load_file

from qpr_jax.encoders.cnn_encoder import CnnEncoder, read_cnn, round_to_half, round_to_int8
from qpr_jax.encoders.cnn_kernels import sum_parts
from qpr_jax.encoders.encoder import serialize_tensors
from qpr_jax.encoders.load import load_encoder, save_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import write_manifest
from qpr_jax.models import embedding_norm
from qpr_jax.text.tokenizer import SubwordBags
from qpr_jax.text.vocabulary import vocabulary_to_bytes
from tests.encoders.examples import QUESTIONS, SUBWORDS, VOCABULARY, WORDS, cnn_encoder, cnn_weights
from tests.refused import check_refused


def test_summary():
    summary, subwords = (cnn_encoder(vocabulary=v).summary() for v in (VOCABULARY, SUBWORDS))
    assert (summary.library, summary.vocabulary_size, summary.words) == ("qpr_jax", 17, WORDS)
    assert "windows of 3, 4 words, 7 filters, embeddings of 6" in summary.description
    assert summary.limits != subwords.limits


def test_word_embeddings_are_those_of_known_words():
    encoder = cnn_encoder(vocabulary=SUBWORDS)
    words, vectors = encoder.word_embeddings()
    assert words == WORDS
    np.testing.assert_array_equal(vectors, encoder.embedding[1 : 1 + len(WORDS)])


def test_sums_of_rows_get_no_longer_than_their_limit_and_are_never_raised_to_it():
    table, norm = np.eye(4, dtype=np.float32), embedding_norm(4)
    limits = np.array([0.5, 2], np.float32) / np.float32(norm)
    rows = np.array([1, 2, 1], np.int32)
    sums, _ = sum_parts(table, SubwordBags(rows, np.array([0, 2, 3]), limits))
    np.testing.assert_allclose(sums, [(table[1] + table[2]) / np.sqrt(8), table[1]], rtol=1e-6)


WEIGHTS = "model.safetensors"


def save(folder: pathlib.Path, **changed) -> CnnEncoder:
    save_encoder(folder, cnn_encoder(**changed))
    return read_cnn(folder)


def test_the_fingerprint_is_a_hash_of_what_decides_the_vectors(tmp_path):
    encoder = save(tmp_path / "a")
    first = encoder.fingerprint
    assert cnn_encoder(normalize=True).fingerprint != first
    assert save(tmp_path / "b", settings={"other": 2}).fingerprint == first
    assert save(tmp_path / "c", max_tokens=21).fingerprint != first
    other = {**cnn_weights(), "biases": cnn_weights(seed=1)["biases"]}
    assert save(tmp_path / "d", **other).fingerprint != first
    # So that indexes built with it stay valid.
    assert first == "cb4d93828fc1ed97d419a48f107cbd72f7795102771a5a44bacbf3ef1f009945"
    assert encoder.files()["vocabulary.json"] == vocabulary_to_bytes(VOCABULARY)
    assert b"subwords" not in encoder.files()["vocabulary.json"]
    assert dataclasses.replace(encoder, vocabulary=SUBWORDS).fingerprint != first


WRONG_SHAPES = [
    ("embedding", np.zeros((16, 6))),  # not the vocabulary's 17 rows
    ("embedding", np.zeros((17, 5))),  # not what the kernels take
    ("kernels", [np.zeros((3, 6, 5)), np.zeros((4, 6))]),
    ("kernels", [np.zeros((3, 6, 5)), np.zeros((0, 6, 2))]),
    ("biases", [np.zeros(5), np.zeros(3)]),
    *(("projection", np.zeros(shape)) for shape in ((8, 7), (7, 0), (7,))),
]


def test_weights_that_do_not_fit_are_refused(tmp_path):
    """Compiled loops would read beyond the arrays."""
    for name, weights in WRONG_SHAPES:
        with pytest.raises(UserError, match="do not fit each other and a vocabulary of 17 ids"):
            save(tmp_path / "e", **{name: weights})
        shutil.rmtree(tmp_path / "e")


BF16 = b'{"embedding": {"dtype": "BF16", "shape": [1, 1], "data_offsets": [0, 2]}}'


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (WEIGHTS, b"none of these", "expected safetensors"),
        (WEIGHTS, struct.pack("<Q", len(BF16)) + BF16 + bytes(2), "expected safetensors"),
        ("vocabulary.json", b'{"words": ["a"], "bins": 4}', "do not fit each other"),
        ("vocabulary.json", b'{"words": "%b", "bins": -4}' % bytes(range(97, 117)), "a list of"),
        ("settings.json", b"{", "expected JSON"),
        ("vocabulary.json", b'{"words": [null], "bins": 4}', "expected a list of `words`"),
        ("vocabulary.json", b'{"words": ["a"], "bins": "4"}', "expected a list of `words`"),
        ("settings.json", b"[]", "expected `max_words`"),
        ("settings.json", b"[" * 100_000, "expected JSON"),
        ("settings.json", b'{"normalize": true, "settings": {}}', "expected `max_words`"),
        ("settings.json", b'{"max_words": 0, "normalize": true, "settings": {}}', "`max_words`"),
        ("settings.json", b'{"max_words": 9, "normalize": 1, "settings": {}}', "`normalize`"),
        ("settings.json", b'{"max_words": 9, "normalize": true, "settings": 7}', "`settings`"),
    ],
)
def test_wrong_contents_with_a_correct_hash_are_refused(tmp_path, name, data, message):
    save_encoder(tmp_path, cnn_encoder())
    (tmp_path / name).write_bytes(data)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    write_manifest(tmp_path, list(manifest["files"]), format=manifest["format"])
    check_refused(read_cnn, (tmp_path, message))


def test_a_folder_of_another_format_is_refused(tmp_path):
    check_refused(load_encoder, (tmp_path, r"expected an encoder \(.*\), got none"))
    write_manifest(tmp_path, [], format="another format 3")
    said = "qpr_jax model 1.*, got another format 3; .*`qpr_jax.register_encoder`"
    check_refused(load_encoder, (tmp_path, said))


def test_weights_of_half_precision_take_half_the_space_and_keep_the_fingerprint(tmp_path):
    whole = cnn_encoder()
    arrays = {name: getattr(whole, name) for name in ("embedding", "projection")}
    half = dataclasses.replace(
        whole,
        **{name: round_to_half(array) for name, array in arrays.items()},
        kernels=tuple(map(round_to_half, whole.kernels)),
        biases=tuple(map(round_to_half, whole.biases)),
    )
    assert half.fingerprint != whole.fingerprint
    save_encoder(tmp_path / "half", half)
    save_encoder(tmp_path / "whole", whole)
    for name, dtype in (("half", np.float16), ("whole", np.float32)):
        stored = load_file(tmp_path / name / WEIGHTS)
        assert {array.dtype for array in stored.values()} == {np.dtype(dtype)}
    read = read_cnn(tmp_path / "half")
    assert read.fingerprint == half.fingerprint
    assert read.embedding.dtype == np.float32
    np.testing.assert_array_equal(read.encode(QUESTIONS), half.encode(QUESTIONS))
    np.testing.assert_allclose(half.encode(QUESTIONS), whole.encode(QUESTIONS), atol=1e-2)
    with pytest.raises(UserError, match=r"`encoder.stored_dtype`: expected weights of half"):
        round_to_half(np.array([70_000.0], np.float32))


def test_a_table_in_eight_bits_takes_a_quarter_of_the_space_and_keeps_the_fingerprint(tmp_path):
    whole = cnn_encoder()
    rounded = {
        "embedding": round_to_int8(whole.embedding),
        "projection": round_to_half(whole.projection),
        "kernels": tuple(map(round_to_half, whole.kernels)),
        "biases": tuple(map(round_to_half, whole.biases)),
    }
    encoder = dataclasses.replace(whole, **rounded)
    save_encoder(tmp_path, encoder)
    stored = load_file(tmp_path / WEIGHTS)
    assert stored["embedding"].dtype == np.int8
    assert stored["embedding_scales"].shape == (len(whole.embedding), 1)
    assert stored["projection"].dtype == stored["kernel_0"].dtype == np.float16
    read = read_cnn(tmp_path)
    assert read.fingerprint == encoder.fingerprint != whole.fingerprint
    np.testing.assert_array_equal(read.embedding, encoder.embedding)
    np.testing.assert_array_equal(read.encode(QUESTIONS), encoder.encode(QUESTIONS))
    np.testing.assert_allclose(encoder.encode(QUESTIONS), whole.encode(QUESTIONS), atol=3e-2)
    for scales in (stored["embedding_scales"][:-1], np.ones((17, 6, 2), np.float32)):
        (tmp_path / WEIGHTS).write_bytes(serialize_tensors(stored | {"embedding_scales": scales}))
        write_manifest(tmp_path, sorted(encoder.files()), **encoder.manifest())
        check_refused(read_cnn, (tmp_path, "expected the weights of an encoder"))


@given(
    arrays(np.float32, (5, 4), elements=st.floats(-1, 1, width=32, allow_subnormal=False)),
    st.integers(-60, 60),
)
def test_rounding_to_eight_bits_is_near_and_done_once(table, exponent):
    table = np.ldexp(table, exponent)
    table[np.abs(table) < 2.0**-110] = 0  # float32 has no such products
    rounded = round_to_int8(table)
    np.testing.assert_array_equal(round_to_int8(rounded), rounded)
    largest = np.abs(table).max(axis=1, keepdims=True)
    assert (np.abs(rounded - table) <= largest / 250).all()
