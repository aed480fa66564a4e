"""Encoders in 8 bits: the packaged `minilm`, and a tiny one made here."""

import concurrent.futures
import dataclasses
import json
import multiprocessing
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from experiments.eight_bits import in_eight_bits, quantize_rows
from qpr_jax.encoders.load import MINILM, PACKAGED, load_encoder, save_encoder
from qpr_jax.encoders.transformer_encoder import (
    OnnxEncoder,
    blocks_of_equal_length,
    read_transformer,
)
from qpr_jax.errors import UserError
from tests.encoders.examples import TINY
from tests.runs import run_python

VECTORS = pathlib.Path(__file__).parent / "minilm_vectors.npz"
TEXTS = [
    "How do I reset my password?",
    "",
    "printer",
    "The scanner on the second floor does not answer since this morning, and nobody knows why.",
    "where is my order " * 80,
    "¿Dónde está mi pedido? \ud800 🦓",
]


@pytest.fixture(scope="module")
def minilm() -> OnnxEncoder:
    return load_encoder(MINILM)


def test_vectors_are_near_those_of_sentence_transformers(minilm):
    """By `SentenceTransformer(folder, device="cpu").encode` of version 6.2.0, in float32."""
    with np.load(VECTORS) as file:
        sentences, expected = json.loads(str(file["sentences"])), file["vectors"]
    found = minilm.encode(sentences)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    cosines = (found * expected).sum(axis=1)
    assert cosines.mean() > 0.993
    assert cosines.min() > 0.975


def test_a_model_in_eight_bits_is_near_its_transformer():
    transformer = read_transformer(TINY)
    found, expected = in_eight_bits(transformer).encode(TEXTS), transformer.encode(TEXTS)
    assert (found * expected).sum(axis=1).min() > 0.99


@pytest.mark.parametrize("size", [7, 1000])
def test_a_text_has_one_vector_in_batches_of_any_size(minilm, size):
    others = [f"question {i} of {i % 13 * 'many '}others" for i in range(size - len(TEXTS))]
    together = minilm.encode([*others, *TEXTS])[len(others) :]
    alone = np.concatenate([minilm.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_threads_share_it(minilm):
    expected = minilm.encode(TEXTS)
    fresh = load_encoder(MINILM)  # whose session all threads need first
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for found in pool.map(fresh.encode, [TEXTS] * 8):
            np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_encodes_while_threads_of_the_parent_do(minilm):
    expected = minilm.encode(TEXTS)
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(minilm.encode, TEXTS * 8) for _ in range(4)]
        for _ in range(3):
            receive, send = context.Pipe(duplex=False)
            child = context.Process(target=lambda end=send: end.send(minilm.encode(TEXTS)))
            child.start()
            assert receive.poll(60), "the child hangs"
            np.testing.assert_allclose(receive.recv(), expected, atol=1e-6)
            child.join()
        for work in busy:
            work.result()


def test_a_misspelled_text_is_the_mean_of_it_and_of_its_correction(minilm, tmp_path):
    plain = dataclasses.replace(minilm, dictionary=b"")
    text, corrected = "how do i reset my pasword", "how do i reset my password"
    both = plain.encode([text, corrected]).sum(axis=0)
    expected = np.stack([both / np.linalg.norm(both), plain.encode([corrected])[0]])
    save_encoder(tmp_path / "saved", minilm)
    for encoder in (minilm, load_encoder(tmp_path / "saved")):
        np.testing.assert_allclose(encoder.encode([text, corrected]), expected, atol=1e-6)
    long = dataclasses.replace(plain, dictionary=minilm.dictionary, normalize=False)
    np.testing.assert_allclose(long.encode([text])[0], both / 2, atol=1e-6)
    assert plain.fingerprint != minilm.fingerprint == load_encoder(tmp_path / "saved").fingerprint


def test_common_words_and_texts_of_another_language_are_not_corrected(minilm):
    plain = dataclasses.replace(minilm, dictionary=b"")
    texts = [*TEXTS, "Wie kann ich mein Kennwort zurücksetzen?", "order X4711A, see invoices.csv"]
    np.testing.assert_array_equal(minilm.encode(texts), plain.encode(texts))


def test_it_needs_neither_jax_nor_torch_nor_a_home_nor_a_network():
    program = """
import socket, sys
def refuse(*_, **__):
    raise AssertionError("no network")
socket.socket.connect = refuse
from qpr_jax import read_encoder
vectors = read_encoder("minilm").encode(["rice", "how do i cook rice"])
print(vectors.shape, [name for name in ("jax", "torch", "transformers") if name in sys.modules])
"""
    out, _ = run_python("-c", program, HOME="/proc/none", XDG_CACHE_HOME="/proc/none")
    assert out == "(2, 384) []\n"


def test_it_is_small_and_its_card_names_licence_and_source(minilm):
    files = [path for path in PACKAGED[MINILM].rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 25e6
    card = (PACKAGED[MINILM] / "README.md").read_text("utf-8")
    assert minilm.fingerprint in card
    for fact in ("apache-2.0", "huggingface.co/sentence-transformers/all-MiniLM-L6-v2"):
        assert fact in card


def test_another_pooling_and_broken_files_are_refused(tmp_path, minilm):
    tiny = read_transformer(TINY)
    object.__setattr__(tiny.shape, "pooling", "cls")
    with pytest.raises(UserError, match="pools by the mean, got cls"):
        in_eight_bits(tiny)
    with pytest.raises(UserError, match="embeddings of words"):
        minilm.word_embeddings()


@given(arrays(np.float32, (3, 8), elements=st.floats(-9, 9, width=32)))
def test_no_pair_of_products_overflows_sixteen_bits(weights):
    """As AVX2 adds them: bytes of activations up to 255, two neighbors of four at a time."""
    codes, scales = quantize_rows(weights, bound_pairs=True)
    assert (codes >= -127).all()
    fours = 255 * np.sort(np.abs(codes.astype(np.int32)).reshape(3, 2, 4), axis=2)
    assert (fours[:, :, -2:].sum(axis=2) <= 32_767).all()
    np.testing.assert_allclose(codes * scales, weights, atol=float(scales.max()) / 2 * 1.001)


@given(st.lists(st.integers(1, 1500), max_size=60))
def test_blocks_hold_each_row_once_and_one_length(lengths):
    blocks = blocks_of_equal_length(np.array(lengths, np.int64))
    assert sorted(row for block in blocks for row in block) == [*range(len(lengths))]
    for block in blocks:
        assert len({lengths[row] for row in block}) == 1
        assert len(block) == 1 or len(block) * lengths[block[0]] <= 1024


def test_models_and_tokenizers_that_do_not_fit_are_refused():
    tiny = in_eight_bits(read_transformer(TINY))
    for changed, said in (
        ({"model": b""}, "expected a model of vectors"),
        ({"model": tiny.model[:-100]}, "expected a model of vectors"),
        ({"model": b"\x80\x04pickle"}, "expected a model of vectors"),
        ({"dimension": 5}, r"expected a model of vectors \[n, 5\]"),
        ({"vocabulary_size": 2**31 - 1}, "expected a model of vectors"),
        ({"vocabulary_size": 3}, "expected at most 3 pieces"),
        ({"tokenizer": b"[" * 100_000}, "expected a tokenizer"),
    ):
        with pytest.raises(UserError, match=said) as error:
            dataclasses.replace(tiny, **changed).encode(["a"])
        assert "\n" not in str(error.value)
