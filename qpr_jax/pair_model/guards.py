"""Guards: what two texts differ in that vectors blur.

Written for English; texts of other languages have the guards of numbers and signs alone.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.data.contrasts import ALTERNATIVES
from qpr_jax.text.differences import names, negates, numbers
from qpr_jax.text.tokenizer import tokenize

GUARDS = (
    "number on one side",
    "numbers differ",  # or stand in another order
    # Signs count as numbers: C++ and C#, 5 and -5. These are of texts with nearly the same words.
    "negation on one side",
    "opposite",
    "names differ",  # or codes, such as X100
    "sentence on one side",  # of statements, beside one that both texts have
)
_DIGITS = re.compile(r"\d+")
_NO_DIGIT = re.compile(r"[^\W\d]")
_OPPOSITES = ALTERNATIVES | {"on": ["off"], "off": ["on"]}
_STEM = 4  # letters of a word that are compared where its form does not count
_ALIKE = 2 / 3  # share of the stems of two texts that both have
_ASKS = re.compile("[?\\uff1f\\u061f\\u037e]")
_APART = 0.5  # largest share of the stems of a sentence that a text has which lacks it
_SENTENCE = re.compile(r"[.!?\u3002\uff01\uff1f](?=\s|$)|[\r\n\u3002\uff01\uff1f]+")
# Words that say nothing of what a text is about: those of negations and greetings among them.
_SMALL_WORDS = (
    "a am an and any are as at be been but by can cannot could did didn do does doesn don done for "
    "from get got had has have how i if in is it its just me must my never no nobody none not "
    "nothing now of on or our please shall should so still t that the their them then there these "
    "they this those to too was we were what when where which who why will with without would you "
    "your hello hi hey dear thank thanks many advance kind best regards greetings cheers sincerely "
    "good morning afternoon evening"
)
_SMALL = frozenset(_SMALL_WORDS.split())


class _Facts(NamedTuple):
    numbers: frozenset[str]
    digits: tuple[str, ...]  # in their order
    negates: bool
    words: frozenset[str]
    stems: frozenset[str]
    names: frozenset[str]
    signs: frozenset[str]
    sentences: tuple[frozenset[str], ...]  # the stems of each, if there are several


@functools.lru_cache(1 << 16)
def _read(text: str) -> _Facts:
    digits = tuple(_DIGITS.findall(text))
    words = frozenset(tokenize(text))
    codes = {word for word in words if _DIGITS.search(word) and _NO_DIGIT.search(word)}
    named = names(text) | codes
    stems = _stems(words)
    parts = [part for part in _SENTENCE.split(text) if part and part.strip()]
    several = len(parts) > 1 and not _ASKS.search(text)  # a question may have a reason beside it
    sentences = tuple(map(_sentence_stems, parts)) if several else ()
    signs = frozenset(tokenize(text, signs=True)) - words
    facts = (numbers(text), digits, negates(text), words, stems, named, signs)
    return _Facts(*facts, sentences)


def _sentence_stems(text: str) -> frozenset[str]:
    return frozenset(word[:_STEM] for word in {*tokenize(text)} - _SMALL)


def _stems(words: Iterable[str]) -> frozenset[str]:
    about = frozenset(words) - _SMALL - _OPPOSITES.keys()
    return frozenset(word[:_STEM] for word in about if not _DIGITS.search(word))


def _compare(first: _Facts, second: _Facts) -> tuple[bool, ...]:
    missing = bool(first.numbers - second.numbers), bool(second.numbers - first.numbers)
    reordered = first.digits != second.digits and sorted(first.digits) == sorted(second.digits)
    others = second.words - first.words
    opposite = any(
        not others.isdisjoint(_OPPOSITES.get(word, ())) for word in first.words - second.words
    )
    named = {name[:_STEM] for name in first.names | second.names}
    shared, either = (first.stems & second.stems) - named, (first.stems | second.stems) - named
    alike = len(shared) >= _ALIKE * len(either)
    return (
        missing[0] != missing[1],
        all(missing) or reordered or (alike and _signs_differ(first.signs, second.signs)),
        alike and first.negates != second.negates,
        alike and opposite,
        alike and bool(first.names - second.words) and bool(second.names - first.words),
        _adds_a_sentence(first, second) or _adds_a_sentence(second, first),
    )


def _adds_a_sentence(first: _Facts, second: _Facts) -> bool:
    """Return whether one sentence of the first text is about the second, and another is not."""
    shares = [len(stems & second.stems) / len(stems) for stems in first.sentences if len(stems) > 1]
    return bool(shares) and min(shares) < 1 - _ALIKE and max(shares) >= _ALIKE


def _signs_differ(first: frozenset[str], second: frozenset[str]) -> bool:
    """Whether both texts have a sign that the other lacks, or one has and it is no picture."""
    left, right = first - second, second - first
    pictures = all(unicodedata.category(sign[0]) == "So" for sign in left | right)
    return bool(left or right) and (not pictures or bool(left and right))


def guards(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Compare pairs of texts: float64 [m, len(GUARDS)], 1 where a pair has the guard.

    >>> guards(["I can print", "room 12"], ["I cannot print", "room 21"])
    array([[0., 0., 1., 0., 0., 0.],
           [0., 1., 0., 0., 0., 0.]])
    """
    pairs = zip(map(_read, first), map(_read, second), strict=True)
    rows = [_compare(one, other) for one, other in pairs]
    return np.array(rows, np.float64).reshape(-1, len(GUARDS))
