"""The compiled loop gives any text the ids that plain Python gives it."""

import concurrent.futures
import dataclasses
import pickle
import random
import sys
import threading
import unicodedata
import zlib

import numpy as np
import pytest

from qpr_jax.data.pairs import read_question_pairs
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import Vocabulary
from tests.text.plain_ids import PlainIds

ODD = (
    "aZ0_ \n\t\0\r?'-/:@[`{\x7f\ud800\udfff\udc00\u2028\x85\u212a\u200d\ufeff\U000e0100"
    "éÉΣς\u03c3ß\u0130\u0131\u0149\u01c5\u0301\u0327\u0345\ufe0f\uff9eﬁ\U0001d400"
    "你 योग한가\u1112\u1161\u11ab😀"
)
# Planes 0 to 3 and the start of 14 have all characters that Unicode defines, but private ones.
EVERY = [chr(code) for code in (*range(0x40000), *range(0xE0000, 0xE1000))]
CHANGED = [c for c in EVERY if unicodedata.normalize("NFKC", c) != c]
MARKS = [c for c in EVERY if unicodedata.category(c) in ("Mn", "Mc")]
KINDS = (
    {},
    {"subwords": True},
    {"char_ngrams": 1},
    {"char_ngrams": 3},
    {"char_ngrams": 9},
)


def assert_same(got, expected):
    for ours, theirs in zip((*got[:3], *got.parts), (*expected[:3], *expected.parts), strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def random_text(rng):
    def character():
        kind = rng.randrange(10)
        if kind < 5:
            return rng.choice("abcABC019_ ?\n")
        if kind < 8:
            return rng.choice(rng.choice((ODD, CHANGED, MARKS)))
        return chr(rng.randrange(rng.choice((128, 0x300, 0x3000, 0x110000))))

    length = rng.choice((0, 1, 2, 5, 20, 20, 20, 1500 if rng.random() < 0.02 else 60))
    return "".join(character() for _ in range(length))


def with_words_of(texts, rng, **kind):
    """A vocabulary of half of the words of texts, some of them added ones, and of others."""
    words = sorted({word for text in texts for word in tokenize(text)})
    rng.shuffle(words)
    odd = ("", "\n", "A", "\ud800", "a b", "é?", "\udfffa")
    several = (*odd, *words[: len(words) // 3])
    return Vocabulary(
        several, bins=rng.choice((1, 7, 5000)), added=tuple(words[-len(words) // 6 :]), **kind
    )


@pytest.mark.parametrize("kind", KINDS)
def test_random_texts_have_the_ids_of_plain_python(kind, monkeypatch):
    rng = random.Random(0)
    for chunk in (1, 7, 10_000):
        monkeypatch.setattr("qpr_jax.text.vocabulary._CHUNK", chunk)
        for _ in range(4):
            texts = [random_text(rng) for _ in range(150)]
            vocabulary = with_words_of(texts, rng, **kind)
            plain = PlainIds(vocabulary)
            for max_tokens in (1, 3, 64, sys.maxsize):
                got = vocabulary.flat_ids(texts, max_tokens)
                assert_same(got, plain.flat_ids(texts, max_tokens))
            for text in texts[:30]:
                assert_same(vocabulary.flat_ids([text]), plain.flat_ids([text]))


@pytest.mark.parametrize("kind", [KINDS[0], pytest.param(KINDS[1], marks=pytest.mark.slow)])
def test_every_character_has_the_ids_of_plain_python(kind):
    """First, last and in the middle of a word, and as a word."""
    texts = [
        " ".join(f"{c}a{c}Σ{c} {c}" for c in EVERY[start : start + 64])
        for start in range(0, len(EVERY), 64)
    ]
    vocabulary = with_words_of(texts[::3], random.Random(1), **kind)
    assert_same(vocabulary.flat_ids(texts), PlainIds(vocabulary).flat_ids(texts))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "texts", [[], [""], ["", ""], ["\n"], ["a"], ["a\nb", "\n\n"], ["?"] * 3, ["x" * 3000, "é"]]
)
def test_few_and_long_texts(kind, texts):
    for words in ((), ("a",), ("x" * 3000, "x")):
        vocabulary = Vocabulary(words, bins=5, **kind)
        assert_same(vocabulary.flat_ids(texts), PlainIds(vocabulary).flat_ids(texts))


@pytest.mark.parametrize("kind", KINDS)
def test_questions_have_the_ids_of_plain_python(kind, quora_file):
    texts = [*read_question_pairs(quora_file, max_rows=3000).questions]
    vocabulary = with_words_of(texts, random.Random(2), **kind)
    plain = PlainIds(vocabulary)
    for max_tokens in (5, 64):
        got = vocabulary.flat_ids(texts, max_tokens)
        assert got.truncated
        assert_same(got, plain.flat_ids(texts, max_tokens))


def test_a_word_of_the_same_hash_is_another_word():
    assert zlib.crc32(b"plumless") == zlib.crc32(b"buckeroo")
    one, both = Vocabulary(("plumless",), bins=10), Vocabulary(("plumless", "buckeroo"), bins=10)
    hashed = 2 + zlib.crc32(b"buckeroo") % 10
    assert one.flat_ids(["buckeroo plumless"]).ids.tolist() == [hashed, 1]
    assert both.flat_ids(["buckeroo plumless"]).ids.tolist() == [2, 1]


def test_threads_share_a_vocabulary_that_none_has_used():
    rng = random.Random(3)
    texts = [random_text(rng) for _ in range(500)]
    first = with_words_of(texts, rng, subwords=True)
    expected = PlainIds(first).flat_ids(texts)
    for _ in range(5):
        vocabulary, barrier = dataclasses.replace(first), threading.Barrier(8)

        def read(_, vocabulary=vocabulary, barrier=barrier):
            barrier.wait()
            return vocabulary.flat_ids(texts)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for got in pool.map(read, range(8)):
                assert_same(got, expected)


def test_a_copy_holds_the_words_alone():
    vocabulary = Vocabulary(("a", "é"), bins=3, subwords=True, added=("b",))
    before = pickle.dumps(vocabulary)
    ids = vocabulary.flat_ids(["a b e q"])
    assert pickle.dumps(vocabulary) == before
    copy = pickle.loads(before)
    assert copy == vocabulary
    assert_same(copy.flat_ids(["a b e q"]), ids)
    other = dataclasses.replace(vocabulary, words=("q",))
    assert other.flat_ids(["a b e q"]).ids.tolist() == [6, 5, 7, 1]
