import unicodedata
import zlib

import pytest

from qpr_jax.text.subwords import fold
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import Vocabulary
from tests.text import plain_ids


def ngram_bins(word, bins):
    """The bins of the n-grams of a word, as of plain Python."""
    rows = Vocabulary((word,), bins, subwords=True).spelled().rows
    assert rows.tolist() == [2 + bin for bin in plain_ids.ngram_bins(word, bins)]
    return tuple((rows - 2).tolist())


@pytest.mark.parametrize(
    ("word", "folded"),
    [
        ("straße", "strasse"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("öffnen", "offnen"),
        ("élève", "eleve"),
        ("français", "francais"),
        ("niño", "nino"),
        ("příliš", "prilis"),
        ("žluťoučký", "zlutoucky"),
        ("σοφός", "σοφοσ"),  # a final sigma is the same letter
        ("ёлка", "елка"),
        ("œuvre", "œuvre"),  # a letter of its own
        ("łódź", "łodz"),
        ("hello", "hello"),
        ("x_9", "x_9"),
        ("", ""),
    ],
)
def test_accents_and_case_fold(word, folded):
    assert fold(word) == folded
    assert fold(unicodedata.normalize("NFD", word)) == folded
    assert fold(folded) == folded


@pytest.mark.parametrize("word", ["हिन्दी", "नमस्ते", "が", "がぎ", "한국어", "สวัสดี", "مَرحبا", "שָׁלוֹם"])
def test_marks_of_other_scripts_are_letters(word):
    assert fold(word) == unicodedata.normalize("NFC", unicodedata.normalize("NFKD", word))


def test_words_that_differ_in_a_vowel_sign_stay_apart():
    assert fold("की") != fold("का") != fold("क")


def test_no_word_folds_to_nothing():
    """Else its embedding would be a sum of nothing."""
    letters = [chr(code) for code in range(0x110000) if tokenize(chr(code))]
    assert len(letters) > 100_000
    assert all(fold(word) for letter in letters for word in tokenize(letter))


def test_bins_by_hand():
    pieces = ["<ca", "cat", "at>", "<cat", "cat>", "<cat>"]
    assert ngram_bins("cat", 1000) == tuple(zlib.crc32(p.encode()) % 1000 for p in pieces)
    # On every machine, in any version.
    hashes = (0xA655AC4C, 0x9E5E43A8, 0x3C66D95C, 0xFAA602BF, 0xCBF087BF, 0x4847FA39)
    assert ngram_bins("cat", 10**9) == tuple(h % 10**9 for h in hashes)


def test_a_word_of_one_letter_is_one_n_gram():
    assert ngram_bins("a", 50) == (zlib.crc32(b"<a>") % 50,)
    assert ngram_bins("é", 50) == ngram_bins("e", 50)


def test_spellings_that_fold_alike_have_the_same_bins():
    assert ngram_bins("straße", 999) == ngram_bins("STRASSE", 999) == ngram_bins("strasse", 999)
    assert ngram_bins("café", 999) == ngram_bins("cafe\u0301", 999)


def test_a_compound_shares_most_n_grams_with_its_parts():
    whole, part = (set(ngram_bins(word, 10**9)) for word in ("straßenlaterne", "laterne"))
    assert len(whole & part) > 0.6 * len(part)


def test_a_long_word_is_read_to_its_64th_character():
    bins = ngram_bins("a" * 64, 10**6)
    assert len(bins) == 64 + 63 + 62
    assert ngram_bins("a" * 64 + "b" * 1_000_000, 10**6) == bins
    assert ngram_bins("a" * 63 + "b", 10**6) != bins


@pytest.mark.parametrize("word", ["\ud800", "a\udfffb", "🦓", "\0", "\n", "\U0010ffff", "ﬃ", "İ"])
def test_any_string_has_bins_in_range(word):
    bins = ngram_bins(word, 7)
    assert bins
    assert set(bins) <= {*range(7)}
    assert ngram_bins(word, 1) == (0,) * len(bins)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Wie heißt die Straße?", ["wie", "heißt", "die", "straße"]),
        ("ÜBERMORGEN geht's los", ["übermorgen", "geht", "s", "los"]),
        ("L'ordinateur d\u2019aujourd'hui", ["l", "ordinateur", "d", "aujourd", "hui"]),
        ("Où est-ce que c'était ?", ["où", "est", "ce", "que", "c", "était"]),
        ("Příliš žluťoučký kůň", ["příliš", "žluťoučký", "kůň"]),
        ("¿Dónde está el niño?", ["dónde", "está", "el", "niño"]),
        ("¡Adiós, pingüino!", ["adiós", "pingüino"]),
        ("हिन्दी कैसे सीखें?", ["हिन्दी", "कैसे", "सीखें"]),
    ],
)
def test_words_of_languages(text, words):
    assert tokenize(text) == words
    assert tokenize(unicodedata.normalize("NFD", text)) == words
