"""Character n-grams of words, and their spelling without accents."""

from __future__ import annotations

import unicodedata

LENGTHS = (3, 4, 5)  # of n-grams, with the markers of a word's start and end
_MOST_CHARACTERS = 64  # of a word that are read: a million of them would take seconds
_FIRST_ACCENT, _LAST_ACCENT = "\u0300", "\u036f"  # combining marks of Latin, Greek and Cyrillic


def fold(word: str) -> str:
    """Remove accents and differences of case: Straße, strasse.

    Marks of other scripts, such as Hindi vowel signs, are letters and stay.
    """
    if word.isascii():
        return word.lower()
    split = unicodedata.normalize("NFKD", word.casefold())
    kept = "".join(c for c in split if not _FIRST_ACCENT <= c <= _LAST_ACCENT)
    return unicodedata.normalize("NFC", kept)


def fold_start(word: str) -> str:
    """The characters whose n-grams stand for a word without an id: its first ones, folded."""
    return fold(word)[:_MOST_CHARACTERS]
