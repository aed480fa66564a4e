"""Words without an id are sums of the bins of their n-grams; encoders grow by added words."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.text.vocabulary import (
    Vocabulary,
    build_vocabulary,
    vocabulary_from_bytes,
    vocabulary_to_bytes,
)
from tests.text.plain_ids import ngram_rows

WORDS = ("how", "straße", "café", "हिन्दी")
VOCABULARY = Vocabulary(WORDS, bins=50, subwords=True)
EXTENDED = dataclasses.replace(VOCABULARY, added=("öffnen", "kůň"))


def spelled(vocabulary, *words):
    """The rows of words without an id."""
    return [ngram_rows(vocabulary, word) for word in words]


def rows_of(parts):
    return [part.tolist() for part in np.split(parts.rows, parts.offsets[1:-1])][: parts.tokens]


def test_an_unknown_word_is_one_token_with_the_rows_of_its_n_grams():
    ids, truncated, parts = VOCABULARY.token_ids(["how zebra", "okapi zebra", ""])
    zebra, okapi = VOCABULARY.size, VOCABULARY.size + 1
    assert ids.tolist() == [[1, zebra], [okapi, zebra], [0, 0]]
    assert ids.dtype == np.int32
    assert truncated == 0
    assert rows_of(parts) == spelled(VOCABULARY, "zebra", "okapi")
    assert (VOCABULARY.first_bin, VOCABULARY.size) == (5, 55)
    assert (parts.rows >= VOCABULARY.first_bin).all()
    assert (parts.rows < VOCABULARY.size).all()


def test_another_spelling_of_a_known_word_has_its_id():
    ids, _, parts = VOCABULARY.token_ids(["Strasse STRASSE Straße cafe Cafe\u0301 हिन्दी"])
    assert ids.tolist() == [[2, 2, 2, 3, 3, 4]]
    assert parts.tokens == 0


def test_a_word_comes_before_others_of_the_same_folded_spelling():
    both = Vocabulary(("schön", "schon"), bins=5, subwords=True)
    assert both.token_ids(["schön schon schòn"]).ids.tolist() == [[1, 2, 1]]
    grown = Vocabulary(("cote",), bins=5, subwords=True, added=("côté", "été"))
    assert grown.token_ids(["cote côté coté été"]).ids.tolist() == [[1, 7, 1, 8]]


def test_an_added_word_changes_no_text_without_it():
    text = ["what is schon here", "offnen kun how straße strasse"]
    grown = VOCABULARY.with_words(["schön", "öffnen", "kůň"], 3)
    before, after = VOCABULARY.token_ids(text), grown.token_ids(text)
    assert rows_of(before.parts) == rows_of(after.parts)
    own = before.ids < VOCABULARY.size
    np.testing.assert_array_equal(own, after.ids < grown.size)
    np.testing.assert_array_equal(before.ids[own], after.ids[own])
    np.testing.assert_array_equal(before.ids[~own] + 3, after.ids[~own])


def test_added_words_follow_the_bins_and_move_no_id():
    questions = ["how kůň zebra", "oeffnen öffnen offnen", "kun"]
    before, after = VOCABULARY.token_ids(questions), EXTENDED.token_ids(questions)
    assert EXTENDED.first_bin == VOCABULARY.first_bin
    assert EXTENDED.size == VOCABULARY.size + 2 == 57
    assert EXTENDED.all_words == (*WORDS, "öffnen", "kůň")
    assert after.ids.tolist() == [[1, 56, 57], [58, 55, 59], [60, 0, 0]]
    assert rows_of(after.parts) == spelled(EXTENDED, "zebra", "oeffnen", "offnen", "kun")
    assert before.ids[0].tolist() == [1, 55, 56]
    known = EXTENDED.is_known(np.array([[0, 1, 4, 5], [54, 55, 56, 57]]))
    assert known.tolist() == [[False, True, True, False], [False, True, True, False]]


def test_added_words_need_no_subwords():
    plain = Vocabulary(("a",), bins=3, added=("b",))
    ids = plain.token_ids(["a b c"]).ids[0].tolist()
    assert ids[:2] == [1, 5]
    assert 2 <= ids[2] < 5
    assert plain.spelled().tokens == 0
    grams = Vocabulary(("a",), bins=3, char_ngrams=3, added=("b",))
    assert grams.token_ids(["a b"]).ids.tolist() == [[1, 5]]


def test_flat_ids_are_the_same_in_parts(monkeypatch):
    questions = ["zebra how", "", "okapi zebra quagga", "how okapi", "gnu"]
    whole = VOCABULARY.flat_ids(questions)
    monkeypatch.setattr("qpr_jax.text.vocabulary._CHUNK", 2)
    again = VOCABULARY.flat_ids(questions)
    for got, expected in zip((*again[:3], *again.parts), (*whole[:3], *whole.parts), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert whole.parts.tokens == 4
    assert rows_of(whole.parts) == spelled(VOCABULARY, "zebra", "okapi", "quagga", "gnu")


def test_truncated_questions_keep_the_parts_of_the_others():
    ids, truncated, parts = VOCABULARY.token_ids(["how zebra gnu gnu", "gnu"], max_tokens=2)
    assert truncated == 1
    assert ids[0, 0] == 1
    found = [rows_of(parts)[id - VOCABULARY.size] for id in (ids[0, 1], ids[1, 0])]
    assert found == spelled(VOCABULARY, "zebra", "gnu")


def test_an_unknown_word_is_one_token_however_long():
    long = "x" * 1_000_000
    ids, truncated, parts = VOCABULARY.token_ids([long], max_tokens=1)
    assert (ids.shape, truncated, parts.tokens) == ((1, 1), 0, 1)
    assert len(parts.rows) < 200


@pytest.mark.parametrize(
    "text", ["\ud800", "a\ud800b", "🦓", "مرحبا", "योग", "\0", "한국어", "\u017f", "İ"]
)
def test_any_string_has_ids_in_range(text):
    ids, _, parts = VOCABULARY.token_ids([text, f"{text} how {text}"])
    assert ids.max() < VOCABULARY.size + parts.tokens
    assert (np.diff(parts.offsets) > 0).all()


def test_known_words_are_spelled_in_the_order_of_their_ids():
    assert rows_of(VOCABULARY.spelled()) == spelled(VOCABULARY, *WORDS)
    assert rows_of(EXTENDED.spelled()) == spelled(EXTENDED, *WORDS)
    assert Vocabulary(WORDS, bins=50).spelled().tokens == 0


def test_written_and_read():
    for vocabulary in (VOCABULARY, EXTENDED, Vocabulary(("a",), 1, added=("b",))):
        data = vocabulary_to_bytes(vocabulary)
        assert data.isascii()
        assert vocabulary_from_bytes(data) == vocabulary


def test_a_vocabulary_without_them_has_the_bytes_of_before():
    data = vocabulary_to_bytes(Vocabulary(("how", "é"), bins=9, char_ngrams=3))
    assert json.loads(data) == {"words": ["how", "é"], "bins": 9, "char_ngrams": 3}
    assert data == b'{\n"words": [\n"how",\n"\\u00e9"\n],\n"bins": 9,\n"char_ngrams": 3\n}'


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"subwords": 1}, "expected `subwords`, true or false, got 1"),
        ({"subwords": None}, "expected `subwords`, true or false, got None"),
        ({"added": "b"}, "expected `added`, a list of strings"),
        ({"added": [1]}, "expected `added`, a list of strings"),
        ({"added": ["a"]}, "expected distinct words"),
        ({"added": ["b", "b"]}, "expected distinct words"),
        ({"subwords": True, "char_ngrams": 3}, "expected `char_ngrams` or `subwords`, got both"),
    ],
)
def test_not_a_vocabulary(fields, message):
    data = json.dumps({"bins": 1, "words": ["a"]} | fields).encode()
    with pytest.raises(UserError, match=message):
        vocabulary_from_bytes(data)


def test_each_language_has_its_most_frequent_words_however_small_its_corpus():
    english = ["how are you"] * 97 + ["are"] * 3  # "are" 100 of 294, the others 97
    german = ["wie geht es"]  # each a third
    assert build_vocabulary(english, german, size=5).words == ("are", "es", "geht", "wie", "how")
    assert build_vocabulary(german, english, size=5).words == ("are", "es", "geht", "wie", "how")
    # A word of both counts where its share is larger.
    assert build_vocabulary(["a a b c"], ["b b b d"], size=2).words == ("b", "a")
    assert build_vocabulary([], ["a"], []).words == ("a",)
    assert build_vocabulary().words == ()


def test_one_corpus_gives_the_words_of_before():
    texts = [" ".join(words) for words in itertools.permutations("abcde", 3)] + ["a b", "b"]
    assert build_vocabulary(texts).words == ("b", "a", "c", "d", "e")


def test_rare_words_are_counted_in_their_own_language():
    assert build_vocabulary(["a a b"], ["b c c"], min_count=2).words == ("a", "c")


def test_words_of_dictionaries_fill_what_is_left():
    fill = ["Haus", "das Haus", "a", "Maus"]
    assert build_vocabulary(["b a a"], fill=fill).words == ("a", "b", "haus", "das", "maus")
    assert build_vocabulary(["b a a"], fill=fill, size=3).words == ("a", "b", "haus")
    assert build_vocabulary(["b a a"], fill=fill, size=1).words == ("a",)
    # Too rare in the texts, but in a dictionary.
    assert build_vocabulary(["b a a"], fill=["b"], min_count=2).words == ("a", "b")
    assert build_vocabulary(fill=iter(fill), subwords=True).subwords
