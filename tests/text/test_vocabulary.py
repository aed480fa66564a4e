import dataclasses
import zlib

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.text.vocabulary import (
    Vocabulary,
    build_vocabulary,
    vocabulary_from_bytes,
    vocabulary_to_bytes,
)


def test_most_frequent_words_first_and_equal_counts_by_word():
    questions = ["b a c", "c d?", "D e", "c"]
    vocabulary = build_vocabulary(questions, size=4, bins=3)
    assert vocabulary.words == ("c", "d", "a", "b")
    assert vocabulary.size == 1 + 4 + 3
    assert build_vocabulary(reversed(questions), size=4, bins=3) == vocabulary
    assert build_vocabulary(questions, size=0, bins=1).words == ()
    assert build_vocabulary([]).words == ()


def test_ids_by_hand():
    vocabulary = Vocabulary(("how", "to", "swim"), bins=7)
    ids, truncated, _ = vocabulary.token_ids(["How to swim?", "", "to dive"])
    dive = 4 + zlib.crc32(b"dive") % 7
    assert ids.tolist() == [[1, 2, 3], [0, 0, 0], [2, dive, 0]]
    assert ids.dtype == np.int32
    assert truncated == 0


def test_the_hash_is_the_same_on_every_machine():
    ids, _, _ = Vocabulary((), bins=5000).token_ids(["café paraphrase"])
    assert ids.tolist() == [[1 + 0x98AD42B5 % 5000, 1 + 0x8EE6EE1A % 5000]]


def test_truncated_questions_are_counted():
    vocabulary = Vocabulary(("a", "b", "c"), bins=1)
    ids, truncated, _ = vocabulary.token_ids(["a b c", "c b", "b a b a"], max_tokens=2)
    assert ids.tolist() == [[1, 2], [3, 2], [2, 1]]
    assert truncated == 2


def test_flat_ids_are_the_same_in_parts(monkeypatch):
    vocabulary = Vocabulary(("a", "b", "c"), bins=2)
    questions = ["a b c d", "", "c\nb", "b é a b a", "?"]
    ids, offsets, truncated, _ = vocabulary.flat_ids(questions, max_tokens=3)
    bin_of_e = 4 + zlib.crc32("é".encode()) % 2
    assert ids.tolist() == [1, 2, 3, 3, 2, 2, bin_of_e, 1]
    assert offsets.tolist() == [0, 3, 3, 5, 8, 8]
    assert truncated == 2
    monkeypatch.setattr("qpr_jax.text.vocabulary._CHUNK", 2)
    for got, expected in zip(
        vocabulary.flat_ids(questions, 3)[:3], (ids, offsets, truncated), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("questions", [[], [""], ["😀", "?"]])
def test_a_question_without_words_is_one_token_of_padding(questions):
    ids, truncated, _ = Vocabulary(("a",), bins=1).token_ids(questions)
    assert ids.tolist() == [[0]] * len(questions)
    assert ids.shape == (len(questions), 1)
    assert truncated == 0


def test_any_string_has_ids_in_range():
    questions = ["x" * 1_000_000, "y " * 300_000, "\0", "\ud800 é", "مرحبا", "योग"]
    vocabulary = Vocabulary(("y",), bins=11)
    ids, truncated, _ = vocabulary.token_ids(questions)
    assert ids.shape == (6, 64)
    assert truncated == 1
    assert ids.min() == 0
    assert ids.max() < vocabulary.size


def test_written_and_read():
    vocabulary = Vocabulary(("how", "é", "योग", "nul\0"), bins=9)
    data = vocabulary_to_bytes(vocabulary)
    assert data.isascii()
    assert vocabulary_from_bytes(data) == vocabulary


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected JSON"),
        (b"\xff", "expected JSON"),
        (b"[]", "expected `words`"),
        (b'{"bins": 1}', "expected `words`"),
        (b'{"bins": 1, "words": [1]}', "expected `words`"),
        (b'{"words": []}', "expected `bins`, a number, got None"),
        (b'{"bins": 0, "words": []}', "`bins`: expected 1 or more, got 0"),
        (b'{"bins": 1, "words": ["a", "a"]}', "expected distinct words"),
    ],
)
def test_not_a_vocabulary(data, message):
    with pytest.raises(UserError, match=message):
        vocabulary_from_bytes(data)


def test_impossible_settings():
    with pytest.raises(UserError, match="`size`: expected 0 or more words, got -1"):
        build_vocabulary(["a"], size=-1)
    with pytest.raises(UserError, match="`bins`: expected 1 or more, got 0"):
        build_vocabulary(["a"], bins=0)
    with pytest.raises(UserError, match="`max_tokens`: expected 1 or more, got 0"):
        Vocabulary(("a",), bins=1).token_ids(["a"], max_tokens=0)


def test_a_vocabulary_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Vocabulary(("a",), bins=1).bins = 2


def test_a_misspelling_shares_character_n_grams_of_a_word_without_an_id():
    vocabulary = Vocabulary(("how", "to"), bins=100_000, char_ngrams=3)
    ids, truncated, _ = vocabulary.token_ids(["how to demonetise", "how to demonetize", "ab"])
    right, wrong, short = (row[row > 0].tolist() for row in ids)
    assert (right[:2], truncated) == ([1, 2], 0)
    pieces = ["<de", "dem", "emo", "mon", "one", "net", "eti", "tis", "ise", "se>"]
    assert right[2:] == [3 + zlib.crc32(piece.encode()) % 100_000 for piece in pieces]
    assert [a == b for a, b in zip(right[2:], wrong[2:], strict=True)] == [True] * 7 + [False] * 3
    assert short == [3 + zlib.crc32(piece) % 100_000 for piece in (b"<ab", b"ab>")]
    one_piece, _, _ = Vocabulary((), bins=100_000, char_ngrams=9).token_ids(["ab"])
    assert one_piece.tolist() == [[1 + zlib.crc32(b"<ab>") % 100_000]]


def test_character_n_grams_count_as_tokens():
    ids, truncated, _ = Vocabulary((), bins=10, char_ngrams=3).token_ids(
        ["abcdef", "ab"], max_tokens=4
    )
    assert (ids.shape, truncated) == ((2, 4), 1)


def test_subwords_survive_the_file_and_are_none_in_one_without_them():
    vocabulary = Vocabulary(("how",), bins=9, char_ngrams=4)
    assert vocabulary_from_bytes(vocabulary_to_bytes(vocabulary)) == vocabulary
    assert vocabulary_from_bytes(b'{"bins": 9, "words": ["how"]}') == Vocabulary(("how",), 9)
    with pytest.raises(UserError, match="expected `char_ngrams`, a number, got '3'"):
        vocabulary_from_bytes(b'{"bins": 9, "words": ["how"], "char_ngrams": "3"}')
    with pytest.raises(UserError, match="`char_ngrams`: expected 0 or more characters, got -1"):
        Vocabulary((), bins=1, char_ngrams=-1)


def test_rare_words_may_be_left_without_an_id():
    questions = ["a a a b b c", "c b d"]
    assert build_vocabulary(questions, min_count=2).words == ("a", "b", "c")
    assert build_vocabulary(questions, min_count=3).words == ("a", "b")


@pytest.mark.parametrize("subwords", [True, False])
def test_added_words_follow_the_bins_and_change_no_other_word(subwords):
    old = build_vocabulary(["how do i cook rice"], bins=7, subwords=subwords)
    new = old.with_words(["wie", "rice", "koche", "ich", "reis"], 3)
    assert new.added == ("wie", "koche", "ich")
    assert new.size == old.size + 3
    texts = ["how do i cook rice", "unknown reis", ""]
    for ours, theirs in zip(old.flat_ids(texts), new.flat_ids(texts), strict=True):
        if isinstance(ours, np.ndarray):
            # Ids of tokens that are sums of rows follow the table.
            np.testing.assert_array_equal(ours, np.where(theirs >= new.size, theirs - 3, theirs))
    assert new.flat_ids(["wie koche ich"]).ids.tolist() == [old.size, old.size + 1, old.size + 2]
    again = new.with_words(["wie", "comment"], 9)
    assert again.added == ("wie", "koche", "ich", "comment")
    assert vocabulary_from_bytes(vocabulary_to_bytes(again)) == again
    assert new.with_words(["wie"], 9) == new
