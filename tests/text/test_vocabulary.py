"""From words to ids: by hand, of any text, and what encoders keep in files."""

import concurrent.futures
import dataclasses
import itertools
import json
import random
import re
import sys
import threading
import unicodedata
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpr_jax.errors import UserError
from qpr_jax.text import vocabulary
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import (
    Vocabulary,
    fold,
    frequent_words,
    vocabulary_from_bytes,
    vocabulary_to_bytes,
)

WORDS = ("how", "straße", "café", "हिन्दी")
VOCABULARY = Vocabulary(WORDS, bins=50, subwords=True)
ODD = (
    "aZ0_ \n\t\0\r?'-/:@[`{\x7f+#&|<5.%\u2028\x85\u212a\u200d\ufeff\U000e0100"
    "éÉΣς\u03c3ß\u0130\u0131\u0149\u01c5\u0301\u0327\u0345\ufe0f\uff9eﬁ\U0001d400"
    "你 योग한가\u1112\u1161\u11ab😀\ud800\udfff"
)
TEXTS = st.lists(st.text(st.sampled_from(ODD) | st.characters(), max_size=40), max_size=9)


@given(TEXTS, st.sampled_from((1, 3, 64, sys.maxsize)))
def test_any_text_has_the_ids_of_its_words(texts, most):
    words = [tokenize(text) for text in texts]
    known = tuple({*itertools.chain(*words)})[::2]
    vocabulary = Vocabulary(known, bins=7)

    def id_of(word):
        return known.index(word) if word in known else len(known) + zlib.crc32(word.encode()) % 7

    found = vocabulary.token_ids(texts, most)
    assert found.ids.tolist() == [1 + id_of(word) for row in words for word in row[:most]]
    assert np.diff(found.offsets).tolist() == [min(len(row), most) for row in words]
    assert found.truncated == sum(len(row) > most for row in words)
    assert (found.ids.dtype, found.offsets.dtype) == (np.int32, np.int64)


@given(TEXTS)
def test_any_text_has_the_same_sums_alone_and_among_others(texts):
    together = VOCABULARY.token_ids(texts)
    for i, text in enumerate(texts):
        alone = VOCABULARY.token_ids([text])
        own = slice(*together.offsets[i : i + 2])
        assert sums_of(alone, alone.ids) == sums_of(together, together.ids[own])


def sums_of(found, ids):
    """The rows of each token, and the limit of those that are sums."""
    size, parts = VOCABULARY.size, found.parts
    of_parts = [(rows, limit) for rows, limit in zip(rows_of(parts), parts.limits, strict=True)]
    return [id if id < size else of_parts[id - size] for id in ids.tolist()]


def test_threads_share_a_vocabulary_that_none_has_used():
    rng = random.Random(3)
    texts = ["".join(rng.choices(ODD, k=20)) for _ in range(500)]
    expected = VOCABULARY.token_ids(texts)
    for _ in range(5):
        vocabulary, barrier = dataclasses.replace(VOCABULARY), threading.Barrier(8)

        def read(_, vocabulary=vocabulary, barrier=barrier):
            barrier.wait()
            return vocabulary.token_ids(texts)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for got in pool.map(read, range(8)):
                np.testing.assert_array_equal(got.ids, expected.ids)
                assert rows_of(got.parts) == rows_of(expected.parts)


def test_a_word_of_the_same_hash_is_another_word():
    assert zlib.crc32(b"plumless") == zlib.crc32(b"buckeroo")
    one, both = Vocabulary(("plumless",), bins=10), Vocabulary(("plumless", "buckeroo"), bins=10)
    hashed = 2 + zlib.crc32(b"buckeroo") % 10
    assert one.token_ids(["buckeroo plumless"]).padded().tolist() == [[hashed, 1]]
    assert both.token_ids(["buckeroo plumless", ""]).padded().tolist() == [[2, 1], [0, 0]]


def test_huge_strings_have_ids():
    questions = ["x" * 1_000_000, "y " * 300_000]
    found = Vocabulary(("y",), bins=11).token_ids(questions)
    assert (found.padded().shape, found.truncated) == ((2, 64), 1)
    found = VOCABULARY.token_ids(questions[:1], max_tokens=1)
    assert (found.padded().shape, found.truncated, found.parts.tokens) == ((1, 1), 0, 1)
    assert len(found.parts.rows) < 200  # of its first 64 characters
    parts = VOCABULARY.token_ids(["ab" * 10**6, "5" * 10**6]).parts
    assert [len(rows) for rows in rows_of(parts)] == [64 + 63 + 62] * 2


def rows_of(parts):
    return [part.tolist() for part in np.split(parts.rows, parts.offsets[1:-1])][: parts.tokens]


def ngram_rows(word):
    """The rows of the n-grams of a word in `VOCABULARY`."""
    marked = f"<{word}>"
    grams = [marked[i : i + n] for n in (3, 4, 5) for i in range(len(marked) - n + 1)]
    return [5 + zlib.crc32(gram.encode()) % 50 for gram in grams]


def test_an_unknown_word_is_one_token_with_the_rows_of_its_n_grams():
    assert (VOCABULARY.first_bin, VOCABULARY.size) == (5, 55)
    found = VOCABULARY.token_ids(["how zebra", "okapi zebra", ""])
    assert found.padded().tolist() == [[1, 55], [56, 55], [0, 0]]
    assert rows_of(found.parts) == [ngram_rows(word) for word in ("zebra", "okapi")]
    found = VOCABULARY.token_ids(["How-9x, ZEBRÁ soooooo", "how-strasse CAFE"])
    assert found.padded().tolist() == [[55, 56, 57], [1, 2, 3]]
    assert rows_of(found.parts) == [[1, *ngram_rows("9x")], ngram_rows("zebra"), ngram_rows("sooo")]
    # "<zeb", "zebr" and "ebra" of "<zebra>" are known, "bras" alone of "<brass>".
    known = Vocabulary(("zebras",), 9, subwords=True)
    limits = known.token_ids(["zebra 9x zephyr brass ж"]).parts.limits
    assert limits.tolist() == pytest.approx([1.5, 0.8, 0.8, 1.15, 0.8])
    pieces = ["<ca", "cat", "at>", "<cat", "cat>", "<cat>"]
    spelled = Vocabulary(("cat", "a"), 1000, subwords=True).spelled()
    expected = [[3 + zlib.crc32(piece.encode()) % 1000 for piece in pieces]]
    assert rows_of(spelled) == [*expected, [3 + zlib.crc32(b"<a>") % 1000]]
    assert rows_of(VOCABULARY.spelled()) == [ngram_rows(fold(word)) for word in WORDS]


SPELLED = ["brass", "hmmmmmm", "été", "a", "", "x" * 100, "ab" * 50, "naïve", "12", "<>"]


def one_error_apart(word, letters):
    for at in range(1, len(word) + 1):
        start, rest = word[:at], word[at:]
        yield from (start + letter + rest for letter in letters)
        if rest:
            yield from (start + letter + rest[1:] for letter in ("", *letters))
            yield start + rest[1:2] + rest[0] + rest[2:]


FEW_LETTERS = st.text("abc", min_size=1, max_size=7)


@given(FEW_LETTERS, st.lists(FEW_LETTERS, min_size=1, max_size=40, unique=True))
def test_an_unknown_word_has_the_first_word_that_it_may_misspell(word, words):
    known = Vocabulary(tuple(words), 50, subwords=True)
    (rows,) = rows_of(known.token_ids([word]).parts) or [[]]
    near = sorted(words.index(other) + 1 for other in {*one_error_apart(word, "abc")} & {*words})
    expected = near[:1] * 2 if len(word) >= 4 and word not in words else []
    assert [row for row in rows if row < known.first_bin] == expected


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("pasword", "password"),
        ("passwrod", "password"),
        ("passwordd", "password"),
        ("paßwort", "password"),  # its folded form is passwort
        ("adres", None),  # two errors
        ("xassword", None),  # the first letter
        ("pass4ord", None),  # a code
        ("naem", "name"),
        ("nam", None),  # short
        ("пороль", "пароль"),
        ("a" * 10_000, None),
    ],
)
def test_what_is_a_misspelling(word, meant):
    words = ("password", "address", "name", "пароль")
    known = Vocabulary(words, 50, subwords=True)
    (rows,) = rows_of(known.token_ids([word]).parts)
    expected = [words.index(meant) + 1] * 2 if meant else []
    assert [row for row in rows if row < known.first_bin] == expected


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("How do I reset my pasword?", "How do I reset my password?"),
        ("RESET MY PASSWROD!!", "RESET MY password!!"),
        ("my pasword's reset", "my password's reset"),
        ("reset-my-pasword", "reset-my-password"),
        ("reset my password", "reset my password"),
        ("do i rset my naem", "do i rset my naem"),  # four letters
        ("how do i reset my_pasword, pasword1, pasword.txt", None),
        ("how do i mail pasword@my.org", None),
        ("how do i open /my/pasword", None),
        ("wie setze ich mein pasword", None),  # most words are unknown
        ("pasword", None),
        ("", None),
    ],
)
def test_a_text_is_corrected_but_no_code_and_no_other_language(text, corrected):
    words = "how do i reset my password name mail open s"
    spelling = vocabulary.Spelling(words.split())
    assert spelling.corrected(text) == (text if corrected is None else corrected)


@given(st.lists(FEW_LETTERS, min_size=1, max_size=20), st.text("abc .@/é9", max_size=40))
def test_correcting_keeps_known_words_and_adds_no_unknown_one(words, text):
    spelling = vocabulary.Spelling(words)
    before, after = (re.findall(r"[^\W\d_]+", each) for each in (text, spelling.corrected(text)))
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        assert new == old or (new in words and fold(old) not in spelling.places)


@pytest.mark.parametrize("searches", [0, 5, 10**9])
def test_four_grams_are_found_as_in_a_set_of_all(searches, monkeypatch):
    monkeypatch.setattr(vocabulary, "_SEARCHES", searches)
    known = vocabulary._FourGrams(SPELLED)
    every = {gram for word in SPELLED for gram in vocabulary._ngrams(word, 4)}
    others = ["brasz", "hmmmm", "xxxx>", "ss><h", "ba", "été", "aaaa"]
    asked = every | {gram for word in others for gram in vocabulary._ngrams(word, 4)}
    assert {gram for gram in asked if gram in known} == every


def test_few_unknown_words_make_no_set_of_all_grams():
    known = Vocabulary(("zebra", "brass"), 50, subwords=True)
    known.token_ids(["zebras of brasss", "zzebra"])
    assert known._known_grams._grams is None
    known.token_ids([f"zebra{a}{b}" for a in "abcdefgh" for b in "abcdefgh"])
    assert known._known_grams._grams


def test_ids_of_one_word_alone_are_known():
    known = VOCABULARY.is_known(np.array([[0, 1, 4], [5, 54, 55]]))
    assert known.tolist() == [[False, True, True], [False, False, False]]


def test_accents_and_case_fold():
    for word, folded in [
        ("straße", "strasse"),
        ("Straße", "strasse"),
        ("öffnen", "offnen"),
        ("français", "francais"),
        ("žluťoučký", "zlutoucky"),
        ("σοφός", "σοφοσ"),  # a final sigma is the same letter
        ("ёлка", "елка"),
        ("œuvre", "œuvre"),  # a letter of its own
        ("łódź", "łodz"),
        ("x_9", "x_9"),
        ("", ""),
        *(("हिन्दी", "हिन्दी"), ("がぎ", "がぎ"), ("한국어", "한국어"), ("สวัสดี", "สวัสดี")),
    ]:
        spellings = {form: unicodedata.normalize(form, word) for form in ("NFC", "NFD")}
        expected = unicodedata.normalize("NFC", folded)
        assert {fold(text) for text in (*spellings.values(), expected)} == {expected}


@given(st.lists(st.text(max_size=5), unique=True), st.integers(1, 99), st.booleans())
def test_written_and_read(words, bins, subwords):
    vocabulary = Vocabulary(tuple(words), bins, subwords)
    data = vocabulary_to_bytes(vocabulary)
    assert data.isascii()
    assert vocabulary_from_bytes(data) == vocabulary


def test_what_is_no_vocabulary():
    for fields in ({"words": None}, {"bins": None}):
        data = json.dumps({"bins": 1, "words": ["a"]} | fields).encode()
        for wrong in (data, b"", b"\xff", b"[]"):
            with pytest.raises(UserError, match="expected"):
                vocabulary_from_bytes(wrong)


def test_most_frequent_words_first_and_equal_counts_by_word():
    questions = ["b a c", "c d?", "D e", "c"]
    assert frequent_words(questions) == ["c", "d", "a", "b", "e"]
    assert frequent_words(reversed(questions)) == frequent_words(questions)
    assert frequent_words() == frequent_words([]) == []
    texts = [" ".join(words) for words in itertools.permutations("abcde", 3)] + ["a b", "b"]
    assert frequent_words(texts) == ["b", "a", "c", "d", "e"]
    assert frequent_words(["a a a b b c", "c b d"], min_count=2) == ["a", "b", "c"]


def test_each_language_and_dictionary_has_its_words_however_small():
    english = ["how are you"] * 97 + ["are"] * 3  # "are" 100 of 294, the others 97
    for several in ((english, ["wie geht es"]), (["wie geht es"], english)):  # each a third
        assert frequent_words(*several)[:5] == ["are", "es", "geht", "wie", "how"]
    # A word of both counts where its share is larger, and a rare word in its own language.
    assert frequent_words(["a a b c"], ["b b b d"])[:2] == ["b", "a"]
    assert frequent_words(["a a b"], ["b c c"]) == ["a", "c", "b"]
    assert frequent_words(["a a b"], ["b c c"], min_count=2) == ["a", "c"]
    # Words of dictionaries fill what is left, also those that are too rare in the texts.
    fill = ["Haus", "das Haus", "a", "Maus"]
    assert frequent_words(["b a a"], fill=fill) == ["a", "b", "haus", "das", "maus"]
    assert frequent_words(["b a a"], fill=["b"], min_count=2) == ["a", "b"]
