"""An encoder that a user defines: what it may leave out, and how it is saved and read."""

import numpy as np
import pytest

from qpr_jax import Encoder, Retriever, UserError, read_encoder, register_encoder
from qpr_jax.cli.indexes import index_facts
from qpr_jax.encoders.load import FORMATS

QUESTIONS = ["aa", "b", "cccc"]


class Lengths(Encoder):
    """The length of a text, and 1."""

    identity = "lengths"
    dimension = 2

    def encode(self, questions):
        return np.array([[len(question), 1] for question in questions], np.float32).reshape(-1, 2)


class SavedLengths(Lengths):
    def files(self):
        return {"a.txt": b"a"}

    def manifest(self):
        return {"format": "lengths 1"}


@pytest.fixture
def _registered():
    read = []
    register_encoder("lengths 1", lambda files: read.append(files) or SavedLengths())
    yield
    del FORMATS["lengths 1"]
    assert read == [{"a.txt": b"a"}] * len(read)
    assert read


def ids(retriever):
    return [hits[0].id for hits in retriever.search(["zz", "z", "zzzzz"], k=1)]


def test_three_members_are_enough_in_memory():
    encoder = Lengths()
    retriever = Retriever.build(QUESTIONS, run=encoder)
    assert ids(retriever) == [0, 1, 2]
    assert retriever.explain("a", "aaa").distance == 4
    assert (encoder.extends, encoder.max_tokens, encoder.normalize) == ((), 0, False)
    assert (encoder.settings, encoder.summary().description) == ({}, "Lengths")


def test_what_it_lacks_is_named(tmp_path):
    with pytest.raises(UserError, match="expected an encoder with files, got Lengths without"):
        Retriever.build(QUESTIONS, run=Lengths()).save(tmp_path / "folder")
    with pytest.raises(UserError, match="with embeddings of words, got Lengths"):
        Lengths().word_embeddings()


@pytest.mark.usefixtures("_registered")
def test_a_registered_one_is_saved_changed_and_loaded(tmp_path):
    Retriever.build_in(tmp_path / "folder", [(1, None, "aa", None)], run=SavedLengths())
    again = Retriever.load(tmp_path / "folder")
    again.add(QUESTIONS[1:])
    assert ids(Retriever.load(tmp_path / "folder")) == [0, 1, 2]
    assert index_facts(str(tmp_path / "folder"))["vocabulary"] == 0
    (tmp_path / "folder" / "export" / "a.txt").write_bytes(b"b")
    with pytest.raises(UserError, match="the bytes differ"):
        read_encoder(tmp_path / "folder" / "export")


def test_a_program_without_the_reader_says_what_it_reads(tmp_path):
    register_encoder("lengths 1", lambda files: SavedLengths())
    Retriever.build(QUESTIONS, run=SavedLengths()).save(tmp_path)
    del FORMATS["lengths 1"]
    with pytest.raises(UserError, match=r"got .lengths 1.; .*`qpr_jax.register_encoder` first"):
        Retriever.load(tmp_path)


def test_formats_of_the_package_are_refused():
    for format in ("", "qpr_jax model 1", "sentence-transformers"):
        with pytest.raises(UserError, match=r"`format`: expected the name of a format of your own"):
            register_encoder(format, lambda files: Lengths())
