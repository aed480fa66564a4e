"""How two texts differ: numbers, negation, names, words and their forms.

Pure functions of two texts. They are written for English and accept any strings.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from qpr_jax.text.cleaning import number_list
from qpr_jax.text.tokenizer import nfkc, nfkc_lower, split_at_words, tokenize

_DIGITS = re.compile(r"\d+")


def numbers(text: str) -> frozenset[str]:
    """Return the numbers of a text as digits: "2", "2.0", "two" and the "2" of "2nd" are equal.

    "one" mostly means something else ("which one"). The 6 of 10⁶ is a number of its own.
    """
    return frozenset(number_list(text))


def numbers_differ(first: str, second: str) -> bool:
    """Return whether the sets of numbers differ; a "1" in one text equals a "one" in the other."""
    of_first, of_second = numbers(first), numbers(second)
    differing = of_first ^ of_second
    if "1" in differing and "one" in tokenize(first if "1" in of_second else second):
        differing -= {"1"}
    return bool(differing)


def numbers_moved(first: Sequence[str], second: Sequence[str], small: Container[str]) -> bool:
    """Return whether tokens have the same numbers in another order: from 3 to 5, from 5 to 3.

    A number has not moved that is part of a code, as E05, or has the same word before it or behind
    it: 3 days, 20 euros. small: words that do not count for this.
    """
    one, other = ([*_with_sides(tokens, small)] for tokens in (first, second))
    digits, others = ([number for number, _ in found] for found in (one, other))
    if digits == others or sorted(digits) != sorted(others):
        return False
    return any(
        all(sides.isdisjoint(there) for number, there in other if number == digit)
        for digit, sides in one
    )


def _with_sides(
    tokens: Sequence[str], small: Container[str]
) -> Iterator[tuple[str, set[tuple[int, str]]]]:
    """Yield each number of tokens with the words before it (-1) and behind it (1), or its code."""
    words = ["", *tokens, ""]
    for before, token, after in zip(words, words[1:], words[2:], strict=False):
        near = {(-1, before), (1, after)} if token.isdigit() else {(0, token)}
        sides = {(side, w) for side, w in near if not side or (w.isalpha() and w not in small)}
        for number in _DIGITS.findall(token):
            yield number, sides


# Curly apostrophes, accents typed as apostrophes, and a prime.
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc\xb4`\u2032", "'"))
_FIRST = "(?:is|are|was|were|has|could|would|should|must)n'?t"  # before the subject
_EITHER = "(?:do|does|did|have|ca|wo|need)n'?t"  # or before a verb: Don't eat that
_PRONOUN = "(?:i|you|he|she|it|we|they|there|this|that|these|those)"
_SUBJECT = rf"(?:{_PRONOUN}|the|an?|my|your|his|her|our|their|any|anyone|everyone|some|people)"
_START = r"(?:^|[.?!:])\W{0,3}"  # of a sentence
_NEUTRAL = re.compile(
    rf"{_START}(?:{_FIRST}|{_EITHER}\s+{_SUBJECT})\b"  # Isn't it better: asks whether it is
    rf"|,\s*(?:{_FIRST}|{_EITHER})\s+{_PRONOUN}\s*(?=[?!.]|$)"  # ..., isn't it?
    r"|\bor\s+(?:why\s+)?not\b"  # Is it good or not? Why or why not?
    r"|\bnot\s+(?:only|just)\b"
    r"|\bno\.?\s*\d"  # no. 1
)
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|nobody|nothing|nowhere|neither|nor|non|cannot|without|[a-z]+n't)\b"
)
# As people type: cant, does'nt.
_CONTRACTED = re.compile(
    r"\b(ca|do|does|did|is|are|was|were|could|wo|would|should|have|has|had|ai|must|need)'?nt\b"
)
_STOPPED = re.compile(r"\bstop(?:s|ped)(?= \w+ing\b)")  # it stopped working: it is not working


def _plain(text: str) -> str:
    """Lower a text, and write its negations alike."""
    text = nfkc_lower(text.translate(_APOSTROPHES))
    return _STOPPED.sub("not", _CONTRACTED.sub(r"\1n't", text))


def negates(text: str) -> bool:
    """Return whether a text contains not, no, never, nothing, without, a word in n't or the like.

    Negations that do not change the question are ignored: "Isn't it better?", "..., isn't it?",
    "or not", "not only", "no. 1".
    """
    return bool(_NEGATION.search(_NEUTRAL.sub(" ", _plain(text))))


_DENIED = re.compile(
    rf"(?:\b(?:not?|never|cannot|without)|n't) (?:{_PRONOUN} )?(?:be |been )?(\w+)"
)


def denied(text: str) -> frozenset[str]:
    """Return the bases of the words right after not, no, cannot, never, without or n't."""
    return frozenset(map(base, _DENIED.findall(_plain(text))))


_VOWEL = re.compile("[aeiouy]")


@functools.lru_cache(1 << 16)
def base(word: str) -> str:
    """Return what the forms of an English word in lower case share; it need not be a word.

    >>> {base(word) for word in ("stop", "stops", "stopped", "stopping")}
    {'stop'}
    """
    if len(word) > 3 and word[-1] == "s" and word[-2] not in "su":
        word = word[:-1]
    for ending in ("ing", "ed", "est", "ly", "er"):  # "lowered": two of them
        rest = word.removesuffix(ending)
        if rest == word or len(rest) < (4 if ending == "ly" else 3):
            continue
        if rest[-1] != "e" and _VOWEL.search(rest):
            doubled = len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] not in "flsz"
            word = rest[:-1] if doubled else rest
    if len(word) > 2 and not word.endswith("ere"):
        word = word.removesuffix("e")
    return f"{word[:-1]}i" if word[-1:] == "y" else word


def with_ending(word: str, ending: str) -> str:
    """Add s, ed or ing to a word."""
    if ending == "s":
        return word + ("es" if re.search("(?:s|x|ch|sh)$", word) else "s")
    doubled = re.sub(r"^([^aeiou]*[aeiou])([bdgmnpt])$", r"\1\2\2", word)
    return doubled.removesuffix("e") + ending


PARTICLES = {"in": "out", "out": "in", "on": "off", "off": "on"}
_JOINED = re.compile(r"\b(log|sign|check|clock|opt|plug)(in|out|on|off)\b")


def split_particles(tokens: Sequence[str]) -> list[str]:
    """Split login and the like into two words; to sign in is to log in."""
    words = _JOINED.sub(r"\1 \2", " ".join(tokens)).split()
    pairs = itertools.pairwise([*words, ""])
    return ["log" if base(word) == "sign" and after in PARTICLES else word for word, after in pairs]


def bases(tokens: Sequence[str]) -> frozenset[str]:
    """Return the bases of words, and particles with the base before them, as "log in"."""
    found, before = set[str](), ""
    for word in tokens:
        if (particle := word.removesuffix("to")) in PARTICLES:
            found.add(f"{before} {particle}")
        found.add(before := base(word))
    return frozenset(found)


# Letters with dots between them (U.S.), or a word that may contain apostrophes.
_WORD = re.compile(r"(?<!\w)(?:[^\W\d_]\.)+[^\W\d_](?!\w)|[^\W_]+(?:'[^\W_]+)*")
_SENTENCE_END = re.compile(r"[.?!:]")
# Words that are not names, even with a capital.
_SMALL_WORDS = (
    "a an and any are as at be by can could did do does dr for from had has have how i i'd i'll "
    "i'm i've if in into is its mr mrs ms my not of on or our should so than that the their then "
    "there these this to was were what when where which whose why will with would you your"
)
_SMALL = frozenset(_SMALL_WORDS.split())


def names(text: str) -> frozenset[str]:
    """Return the names in a text, in lower case: words with a capital, and acronyms.

    The first word of a sentence, small words (The, Why) and the words of a question in title case
    are not names, unless they have a capital after the first letter (USA, iPhone). A text that is
    all capitals has no names.
    """
    text = nfkc(text.translate(_APOSTROPHES))
    pieces = re.split(f"({_WORD.pattern})", text)
    gaps, words = pieces[::2], pieces[1::2]
    if len(words) > 3 and text.isupper():
        return frozenset()
    titled = _in_title_case(words)
    found = set()
    for number, (gap, word) in enumerate(zip(gaps, words, strict=False)):
        starts = number == 0 or _SENTENCE_END.search(gap) is not None
        acronym = any(c.isupper() for c in word[1:])
        named = acronym or (word[0].isupper() and not starts and not titled)
        if named and word.lower() not in _SMALL:
            found.add(_name(word))
    return frozenset(found)


def _in_title_case(words: list[str]) -> bool:
    """Whether all long words have a capital, and so has a small word, or there are four of them."""
    later = [word for word in words[1:] if not re.match(r"I\b", word)]
    long = [word for word in later if len(word) > 3 and word.lower() not in _SMALL]
    small = any(word[0].isupper() for word in later if word.lower() in _SMALL)
    return (small or len(long) > 3) and all(word[0].isupper() for word in long)


def _name(word: str) -> str:
    """Normalize a name: remove dots, a final 's, and the plural s of an acronym; lower case."""
    word = re.sub(r"'s$|\.", "", word)
    if len(word) > 2 and word[:-1].isupper() and word.endswith("s"):
        word = word[:-1]
    return word.lower()


def names_differ(first: str, second: str) -> bool:
    """Return whether one text has a name that the other lacks in any spelling of its case."""

    def missing(named: str, other: str) -> bool:
        words = {_name(word) for word in _WORD.findall(nfkc(other.translate(_APOSTROPHES)))}
        return bool(names(named) - words)

    return missing(first, second) or missing(second, first)


def mark_words(text: str, other: str) -> list[tuple[str, bool]]:
    """Split a text into pieces that join to it, each with whether `other` lacks its words."""
    words = {word for _, word in split_at_words(other)}
    pieces = split_at_words(text)
    differs = [bool(word) and word not in words for _, word in pieces]
    for at in range(1, len(pieces) - 1):
        if not pieces[at][1] and differs[at - 1] and differs[at + 1]:
            differs[at] = True
    runs = itertools.groupby(zip(pieces, differs, strict=True), key=operator.itemgetter(1))
    return [("".join(piece for (piece, _), _ in run), differ) for differ, run in runs]


def missing_words(text: str, other: str) -> list[str]:
    """Return the words of `other` that the text lacks, each once, in order."""
    words = {*tokenize(text)}
    return [word for word in dict.fromkeys(tokenize(other)) if word not in words]


class Differences(NamedTuple):
    """In what a text and another one differ.

    Attributes:
      text_words: the words that the other lacks.
      other_words: those that the text lacks.
      text_numbers: the numbers that the other lacks, as digits.
      other_numbers: those that the text lacks.
      negation: whether exactly one of the two negates.
    """

    text_words: tuple[str, ...] = ()
    other_words: tuple[str, ...] = ()
    text_numbers: tuple[str, ...] = ()
    other_numbers: tuple[str, ...] = ()
    negation: bool = False


class Explanation(NamedTuple):
    """Why a query and a question match.

    Attributes:
      distance: by the encoder.
      score: how likely the two mean the same, as `Hit.score`.
      guards: those that lower the score (`pair_model.guards`).
      differences: words, numbers and negation in which the two differ.
    """

    distance: float
    score: float | None = None
    guards: tuple[str, ...] = ()
    differences: Differences = Differences()


def find_differences(text: str, other: str) -> Differences:
    """Compare two texts."""
    first, second = numbers(text), numbers(other)
    if not numbers_differ(text, other):
        first = second = frozenset()
    return Differences(
        tuple(missing_words(other, text)),
        tuple(missing_words(text, other)),
        tuple(sorted(first - second)),
        tuple(sorted(second - first)),
        negates(text) != negates(other),
    )
