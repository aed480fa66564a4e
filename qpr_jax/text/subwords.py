"""Character n-grams of words, and their spelling without accents."""

from __future__ import annotations

import functools
import unicodedata
import zlib

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


def ngram_bins(word: str, bins: int) -> tuple[int, ...]:
    """The bins, from 0 to `bins` - 1, of the n-grams of a word without accents.

    Source: Bojanowski, Grave, Joulin and Mikolov (2017), "Enriching Word Vectors with Subword
    Information"; the hash is CRC-32.
    """
    return _bins_of(fold(word)[:_MOST_CHARACTERS], bins)


@functools.lru_cache(maxsize=1 << 15)  # of short keys: tens of megabytes at most
def _bins_of(folded: str, bins: int) -> tuple[int, ...]:
    marked = f"<{folded}>"
    grams = (
        marked[start : start + length]
        for length in LENGTHS
        for start in range(len(marked) - length + 1)
    )
    return tuple(hash_text(gram) % bins for gram in grams)


def hash_text(text: str) -> int:
    """CRC-32 of a text in UTF-8."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))
