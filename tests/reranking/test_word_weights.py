"""The weights of the words in which two texts differ, against dictionaries."""

import itertools

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index.text_kernels import MAX_WORDS, word_hashes
from qpr_jax.reranking.word_weights import BITS, MOST, check_weights, weight_rows
from qpr_jax.text.tokenizer import tokenize

TEXTS = [
    "How do I buy a car?",
    "How do I purchase a used car car?",
    "one two three four five six seven eight",
    "nine ten eleven, twelve thirteen fourteen fifteen",
    "Naïve café",
    " ".join(f"w{i}" for i in range(70)),
    "w69 w63 w62",
    "",
]


def expected_rows(query: str, question: str) -> list[int]:
    words = [[*dict.fromkeys(tokenize(text)[:MAX_WORDS])] for text in (query, question)]
    own, other = (
        word_hashes([w for w in a if w not in b][:6]).tolist() for a, b in (words, words[::-1])
    )
    pairs = itertools.product(own[:4], other[:4])
    sums = [(a + b) * 0x9FB21C651E98DF25 % 2**64 for a, b in pairs]
    return [h >> (64 - BITS) for h in own + other + sums]


def test_rows_of_pairs_of_texts():
    starts = np.arange(len(TEXTS) + 1) * len(TEXTS)
    rows, bounds = weight_rows(TEXTS, TEXTS * len(TEXTS), starts)
    assert rows.dtype == np.int32
    for i, (query, question) in enumerate(itertools.product(TEXTS, repeat=2)):
        assert rows[bounds[i] : bounds[i + 1]].tolist() == expected_rows(query, question)
    most = np.diff(bounds).max()
    assert most == MOST == len(expected_rows(TEXTS[2], TEXTS[3]))
    assert not len(weight_rows([], [], np.array([0]))[0])


def test_both_orders_have_the_same_weights():
    forth, _ = weight_rows(TEXTS[:1], TEXTS[1:2], np.array([0, 1]))
    back, _ = weight_rows(TEXTS[1:2], TEXTS[:1], np.array([0, 1]))
    assert sorted(forth) == sorted(back)


@pytest.mark.parametrize(
    "weights",
    [np.zeros(5, np.float32), np.zeros(1 << BITS), np.full(1 << BITS, np.nan, np.float32)],
)
def test_other_arrays_are_refused(weights):
    with pytest.raises(UserError, match="here: expected `word_weights`"):
        check_weights(weights, "here")
