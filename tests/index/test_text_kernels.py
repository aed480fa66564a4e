import numpy as np

from qpr_jax.index import text_kernels
from qpr_jax.text.tokenizer import tokenize

TEXTS = [
    "What is Python 3.11?",
    "",
    "?!",
    "don't  stop_now\nHere",
    "Ünïcode — “quoted” naïve café",
    "हिन्दी में कैसे लिखें",
    "日本語のテキスト",
    "a lone \ud800 surrogate",
    "ﬁne \N{KELVIN SIGN}",
]


def words_of(text: str) -> np.ndarray:
    data, offsets = text_kernels.as_bytes([text])
    buffers = text_kernels.make_buffers()
    count, size = text_kernels.read_words(data, offsets[0], offsets[1], buffers)
    spelled = bytes(buffers[0][:size]).decode()
    assert spelled == " ".join(["", *tokenize(text), ""]) if count else size == 1
    return buffers[1][:count]


def test_words_are_those_of_the_tokenizer():
    for text in TEXTS:
        np.testing.assert_array_equal(
            words_of(text), text_kernels.word_hashes(tokenize(text)), err_msg=repr(text)
        )


def test_a_text_has_the_same_bytes_among_any_others():
    together, offsets = text_kernels.as_bytes(TEXTS)
    for i, text in enumerate(TEXTS):
        alone, _ = text_kernels.as_bytes([text])
        a, b = bytes(together[offsets[i] : offsets[i + 1]]), bytes(alone)
        assert a.lower() == b.lower()


def test_what_is_not_one_word_has_hash_0():
    hashes = text_kernels.word_hashes(
        ["two words", "", "word", "2015", "\N{FULLWIDTH LATIN SMALL LETTER W}ord"]
    )
    assert [bool(h) for h in hashes] == [False, False, True, True, True]
    assert hashes[2] == hashes[4]
    assert [int(h) & 1 for h in hashes[2:4]] == [0, 1]  # whether there is a digit


def test_long_texts_are_cut():
    assert len(words_of("a " * 40)) == 40
    data, offsets = text_kernels.as_bytes(["a " * 10_000, "b" * 10_000, "é" * 10_000])
    buffers = text_kernels.make_buffers()
    for i, expected in enumerate([text_kernels.MAX_WORDS, 1, 1]):
        count, size = text_kernels.read_words(data, offsets[i], offsets[i + 1], buffers)
        assert count == expected
        assert size <= text_kernels.MAX_BYTES + 2
