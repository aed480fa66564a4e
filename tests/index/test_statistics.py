import collections

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index import text_kernels
from qpr_jax.index.statistics import Statistics
from qpr_jax.text.tokenizer import tokenize

TEXTS = ["What is JAX?", "what is what?", "", "Is 日本 in Asia?", "JAX", "a" * 3000, "x y " * 500]


def test_counts_documents_by_word():
    statistics = Statistics.build(iter(TEXTS))
    expected = collections.Counter(
        word for text in TEXTS[:5] for word in {*tokenize(text)} if word != "a"
    )
    assert statistics.count == len(TEXTS)
    rows = [
        text_kernels.bucket(np.uint64(h), text_kernels.WORD_BITS)
        for h in text_kernels.word_hashes([*expected])
    ]
    assert statistics.counters.words[rows].tolist() == [*expected.values()]
    words = sum(min(len(tokenize(text)), text_kernels.MAX_WORDS) for text in TEXTS)
    assert statistics.words == words
    assert statistics.mean_length == pytest.approx(words / len(TEXTS))


def test_counts_n_grams_once_a_text():
    counters = Statistics.build(["aaaa aaaa", "aaaa"]).counters
    # " aa", "aaa", "aa " and, of the first text only, "a a".
    assert sorted(counters.threes[counters.threes > 0].tolist()) == [1, 2, 2, 2]
    assert sorted(counters.fours[counters.fours > 0].tolist()) == [1, 1, 2, 2, 2]
    assert counters.pairs[counters.pairs > 0].tolist() == [1]


def test_removal_is_the_inverse_of_addition():
    statistics = Statistics.build(TEXTS[:3])
    before = statistics.to_bytes()
    statistics.add(TEXTS)
    statistics.remove(TEXTS[::-1])
    assert statistics.to_bytes() == before
    statistics.remove(TEXTS[:3])
    assert statistics.to_bytes() == Statistics().to_bytes()
    assert not any(table.any() for table in statistics.counters)


def test_bytes():
    statistics = Statistics.build([*TEXTS, *["what"] * 300])
    data = statistics.to_bytes()
    read = Statistics.from_bytes(data, "here")
    assert (read.count, read.words) == (statistics.count, statistics.words)
    assert read.to_bytes() == data
    assert len(data) < 100_000


def test_damage_is_an_error():
    data = Statistics.build(TEXTS).to_bytes()
    damaged = [
        b"",
        data[:-3],
        data.replace(b"statistics 1", b"statistics 7"),
        data.replace(b"words.rows", b"wards.rows"),
        data[:-200] + bytes(200),
    ]
    for other in damaged:
        with pytest.raises(UserError, match="here: expected"):
            Statistics.from_bytes(other, "here")
