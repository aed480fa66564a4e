"""Misspelled texts, to measure how much a search loses by them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qpr_jax.text.tokenizer import split_at_words

_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_SHORTEST = 4  # letters of a word that gets a typo
KINDS = ("neighbor", "drop", "swap", "double")


def misspell(
    text: str, rng: np.random.Generator, words: int = 1, kinds: Sequence[str] = KINDS
) -> str:
    """Make a typo in some words of a text: one letter is hit next to its key, or left out, or
    swapped with the next, or typed twice. The first letter stays, and so do short words.

    words: how many words get one, if the text has as many of 4 letters or more.
    kinds: some of KINDS, one of which a word gets; where it cannot, a letter is typed twice.
    """
    pieces = [piece for piece, _ in split_at_words(text)]
    places = [i for i, piece in enumerate(pieces) if len(piece) >= _SHORTEST and piece.isalpha()]
    for place in rng.permutation(places)[:words]:
        pieces[place] = _misspell_word(pieces[place], rng, kinds)
    return "".join(pieces)


def _misspell_word(word: str, rng: np.random.Generator, kinds: Sequence[str]) -> str:
    at = int(rng.integers(1, len(word) - 1))
    kind = kinds[int(rng.integers(len(kinds)))]
    letter = word[at]
    if kind == "drop":
        return word[:at] + word[at + 1 :]
    if kind == "swap" and word[at + 1] != letter:
        return word[:at] + word[at + 1] + letter + word[at + 2 :]
    if kind == "double" or not (neighbors := _neighbors(letter)):
        return word[:at] + letter + word[at:]
    new = neighbors[rng.integers(len(neighbors))]
    return word[:at] + new + word[at + 1 :]


def _neighbors(letter: str) -> str:
    """The letters next to one on a QWERTY keyboard, in its row and in the rows above and below."""
    for number, row in enumerate(_ROWS):
        at = row.find(letter.lower())
        if at >= 0:
            near = row[max(0, at - 1) : at] + row[at + 1 : at + 2]
            for other in _ROWS[max(0, number - 1) : number] + _ROWS[number + 1 : number + 2]:
                near += other[max(0, at - 1) : at + 1]
            return near
    return ""
