"""What every encoder promises, CNNs against their definition, and encoders of users."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.eight_bits import in_eight_bits
from qpr_jax import Encoder, Retriever, read_encoder, register_encoder
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.load import FORMATS, STUDENT, save_encoder
from qpr_jax.encoders.transformer_encoder import read_transformer
from qpr_jax.errors import UserError
from tests.encoders.examples import (
    QUESTIONS,
    SUBWORDS,
    TINY,
    VOCABULARY,
    cnn_encoder,
    cnn_weights,
    reference,
    with_rows_of_sums,
)

UNICODE = ["\x00", "\ud800 é \ud800", "🦓🦓", "\r\n", "é" * 1000, "a" * 100_000, "e\u0301"]
TEXTS = [*QUESTIONS, "what is the best zebra", "zebra zebra", "okapi LEARN leärn", *UNICODE]


def make_cnn(*, subwords=False, normalize=False, **changes) -> CnnEncoder:
    vocabulary = SUBWORDS if subwords else VOCABULARY
    return cnn_encoder(vocabulary=vocabulary, normalize=normalize, **cnn_weights(**changes))


CNNS = {
    "maxima": {},
    "bag_of_words": {"bag_of_words": True},
    "normalize": {"normalize": True},
    "wide_windows": {"sizes": (6, 1), "filters": (9, 2)},
    "odd_windows": {"sizes": (11, 5)},
    "even_windows": {"sizes": (2, 4)},
    "subwords": {"subwords": True, "bag_of_words": True},
}
ENCODERS = [*CNNS, "packaged", "transformer", "eight_bits"]


@pytest.fixture(scope="module", params=ENCODERS)
def encoder(request) -> Encoder:
    if request.param in CNNS:
        return make_cnn(**CNNS[request.param])
    if request.param == "eight_bits":
        return in_eight_bits(read_transformer(TINY))
    return read_encoder(STUDENT if request.param == "packaged" else TINY)


def assert_same(encoder, actual, expected):
    """To the last bit; a transformer's products depend on the shape of a block."""
    if isinstance(encoder, CnnEncoder):
        np.testing.assert_array_equal(actual, expected)
    else:
        np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_shapes_and_types(encoder):
    vectors = encoder.encode(TEXTS)
    assert (vectors.shape, vectors.dtype) == ((len(TEXTS), encoder.dimension), np.float32)
    assert np.isfinite(vectors).all()
    if encoder.normalize:
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    none = encoder.encode([])
    assert (none.shape, none.dtype) == ((0, encoder.dimension), np.float32)
    for same in (tuple(TEXTS), np.array(TEXTS[:4])):
        assert_same(encoder, encoder.encode(same), vectors[: len(same)])


def test_no_text_changes_the_vector_of_another(encoder):
    together = encoder.encode(TEXTS)
    # A copy computes its tables again, in another order.
    fresh = dataclasses.replace(encoder)
    alone = np.concatenate([fresh.encode([text]) for text in TEXTS[::-1]])[::-1]
    assert_same(encoder, alone, together)
    # More than a thread encodes at a time.
    assert_same(encoder, encoder.encode(TEXTS * 60), np.tile(together, (60, 1)))


def test_tokens_beyond_the_limit_are_not_read_which_is_said(encoder, caplog):
    start = "what " * encoder.max_tokens
    said = f"texts of more than {encoder.max_tokens} tokens, of which the rest is not read: "
    for one in (dataclasses.replace(encoder), dataclasses.replace(encoder)):  # each says so once
        caplog.clear()
        one.encode(["what " * (one.max_tokens - 2)])
        assert not caplog.text
        assert_same(one, *one.encode([start, start + "is the best way"]))
        one.encode([start * 2] * 3)
        assert (said in caplog.text, caplog.text.count("tokens")) == (True, 1)


def test_other_values_than_lists_of_strings_are_refused(encoder):
    for texts in ["what is", b"what", {"what": 1}, None, 7, ["what", None], [b""]]:
        with pytest.raises(UserError, match="expected"):
            encoder.encode(texts)


def test_a_saved_encoder_is_the_same(encoder, tmp_path):
    save_encoder(tmp_path / "saved", encoder, card="# mine\n")
    again = read_encoder(tmp_path / "saved")
    assert again.fingerprint == encoder.fingerprint
    for name in ("dimension", "max_tokens", "normalize", "settings"):
        assert getattr(again, name) == getattr(encoder, name)
    assert_same(encoder, again.encode(TEXTS), encoder.encode(TEXTS))
    names = {*encoder.files(), "README.md"}
    files = {str(p.relative_to(tmp_path / "saved")) for p in (tmp_path / "saved").rglob("*.*")}
    assert names | {"manifest.json"} == {name for name in files if "." in name.split("/")[-1]}
    manifest = json.loads((tmp_path / "saved" / "manifest.json").read_text())
    assert manifest["files"].keys() == names


@pytest.mark.parametrize("kind", ["maxima", "transformer"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damaged_files_are_refused(tmp_path, kind, damage):
    encoder = make_cnn() if kind == "maxima" else read_encoder(TINY)
    for name in encoder.files():
        save_encoder(tmp_path / "e", encoder)
        path = tmp_path / "e" / name
        data = bytearray(path.read_bytes())
        if damage == "remove":
            path.unlink()
        elif damage == "truncate":
            path.write_bytes(data[:-1])
        else:
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        with pytest.raises(UserError, match=r"missing|found none|bytes|expected"):
            read_encoder(tmp_path / "e")


def test_a_cnn_is_equation_1_in_float64():
    for kind in CNNS:
        encoder = make_cnn(**CNNS[kind])
        ids = encoder.vocabulary.token_ids(TEXTS, encoder.max_tokens)
        plain = with_rows_of_sums(encoder, ids.parts)
        expected = np.stack([reference(plain, row[row > 0].tolist()) for row in ids.padded()])
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, rtol=2e-5, atol=4e-6)


# An encoder that a user defines: what it may leave out, and how it is saved and read.
OWN = ["aa", "b", "cccc"]


class Lengths(Encoder):
    """The length of a text, and 1."""

    fingerprint = "lengths"
    dimension = 2

    def encode(self, questions):
        return np.array([[len(question), 1] for question in questions], np.float32).reshape(-1, 2)


class SavedLengths(Lengths):
    def files(self):
        return {"a.txt": b"a"}

    def manifest(self):
        return {"format": "lengths 1"}


def ids(retriever):
    return [hits[0].id for hits in retriever.search(["zz", "z", "zzzzz"], k=1, rerank=False)]


def test_three_members_are_enough_in_memory():
    encoder = Lengths()
    retriever = Retriever.build(OWN, encoder=encoder)
    assert ids(retriever) == [0, 1, 2]
    assert retriever.explain("a", "aaa").distance == 4
    assert (encoder.max_tokens, encoder.normalize) == (0, False)
    summary = encoder.summary()
    assert (summary.description, summary.vocabulary_size) == ("Lengths", 0)
    assert encoder.settings == {}


def test_what_it_lacks_is_named(tmp_path):
    with pytest.raises(UserError, match="expected an encoder with files, got Lengths without"):
        Retriever.build(OWN, encoder=Lengths()).save(tmp_path / "folder")
    with pytest.raises(UserError, match="with embeddings of words, got Lengths"):
        Lengths().word_embeddings()


def test_a_registered_one_is_saved_changed_and_loaded(tmp_path, monkeypatch):
    read = []
    monkeypatch.setitem(FORMATS, "lengths 1", None)  # which is undone
    register_encoder("lengths 1", lambda files: read.append(files) or SavedLengths())
    Retriever.build(["aa"], location=tmp_path / "folder", encoder=SavedLengths())
    again = Retriever.load(tmp_path / "folder")
    again.add(OWN[1:])
    assert ids(Retriever.load(tmp_path / "folder")) == [0, 1, 2]
    assert read == [{"a.txt": b"a"}] * len(read) != []
    (tmp_path / "folder" / "export" / "a.txt").write_bytes(b"b")
    with pytest.raises(UserError, match="the bytes differ"):
        read_encoder(tmp_path / "folder" / "export")


def test_formats_of_the_package_are_refused():
    for format in ("", "qpr_jax model 1", "sentence-transformers"):
        with pytest.raises(UserError, match=r"`format`: expected the name of a format of your own"):
            register_encoder(format, lambda files: Lengths())
