"""Guards, what two texts differ in that vectors blur, and shared words.

Written for English; texts of other languages have the guards of numbers and signs alone.
"""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.text.differences import (
    PARTICLES,
    base,
    bases,
    denied,
    names,
    negates,
    numbers,
    numbers_moved,
    split_particles,
)
from qpr_jax.text.tokenizer import nfkc, tokenize

GUARDS = (
    "number on one side",
    "numbers differ",  # or stand in another order
    # Signs count as numbers: C++ and C#, 5 and -5. These are of texts with nearly the same words.
    "negation on one side",
    "opposite",  # or another unit, day, color; or from B to A instead of from A to B
    "names differ",  # or codes, such as X100
    "sentence on one side",  # of statements, beside one that both texts have
    "one word differs",  # and no other guard holds
)
_DIGITS = re.compile(r"\d+")
_NO_DIGIT = re.compile(r"[^\W\d]")
# In each line, sides between slashes: a word of a side means something else than those of the
# others. Forms of a word that only differ in their ending are not listed.
_GROUPS = importlib.resources.files("qpr_jax.pair_model").joinpath("contrasts.txt")
ALTERNATIVES: dict[str, list[str]] = {}  # the words that a base of a word may be replaced by
LISTED: set[str] = set()
for _group in _GROUPS.read_text("utf-8").splitlines():
    for _side, _other in itertools.permutations(map(str.split, _group.split("/")), 2):
        for _word in _side:
            ALTERNATIVES.setdefault(base(_word), []).extend(_other)
            LISTED.add(_word)
_OPPOSITES = {word: frozenset(map(base, others)) for word, others in ALTERNATIVES.items()}
# Beginnings of opposites, and how many letters follow at least.
_BEGINNINGS = (
    *(("", beginning, 3) for beginning in ("un", "non", "dis")),
    *(("", beginning, 5) for beginning in ("in", "im", "il", "ir")),
    *(("", "de", 6), ("", "anti", 4), ("", "counter", 4), ("re", "dis", 4), ("in", "de", 4)),
    *(("in", "out", 3), ("up", "down", 3), ("over", "under", 3), ("pre", "post", 3)),
    *(("max", "min", 0), ("hyper", "hypo", 4)),
)
# Bases that with a beginning mean no opposite: count, discount.
_NO_OPPOSITES = (
    "card mis count cover play place patch posit solv order tress tend fanci sight stall stanc "
    "differ different valuabl press plant print generat terminat"
)
_OTHERS = frozenset(_NO_OPPOSITES.split())
# Opposites that mean the same where one text alone has one of these words: do you sell it, can I
# buy it; until when is it open, when does it close.
_CONVERSES = tuple(
    (frozenset(map(base, verbs.split())), frozenset(words.split()))
    for verbs, words in (
        ("buy purchase sell send receive lend borrow", "you"),
        ("open close shut", "until till late long"),
    )
)
_SIDES = "from to into before after than over under above below with without"
_ROLES = tuple(_SIDES.split())
_STEM = 4  # letters of a word that are compared where its form does not count
_ALIKE = 2 / 3  # share of the stems of two texts that both have
_RELATED = 1 / 2  # the same, of texts with opposites: few of one meaning have any
_ASKS = re.compile("[?\\uff1f\\u061f\\u037e]")
# A letter alone, as of a room or a size. "a" is one at the end, "A" also before lower case: an
# article is neither. Other small letters may be words, as in Polish, or be short for one.
_LETTER = re.compile(
    r"(?<![\w'\u2019.&/-])(?:[B-HJ-Zbcdfghjlmpq]|(?!i)[a-z](?=\W*$)"
    r"|(?<=[\w,] )A(?=\s+[a-z]|\W*$))(?![\w'\u2019&/-]|\.\w)"
)
# Signs of money and shares beside a number, and codes of currencies, as the words they stand for.
_MONEY = {"$": "dollar", "\xa3": "pound", "\u20ac": "euro", "\xa5": "yen", "\u20b9": "rupee"}
_UNITS = _MONEY | {"%": "percent", "per cent": "percent"}
_UNITS |= {"usd": "dollar", "gbp": "pound", "eur": "euro", "jpy": "yen", "inr": "rupee"}
_AMOUNT = re.compile(rf"([{''.join(_MONEY)}])\s?(\d(?:[\d.,]*\d)?)")
_UNIT = re.compile(rf"(?<=\d)\s?[%{''.join(_MONEY)}]|(?i:\b(?:usd|gbp|eur|jpy|inr|per cent)\b)")
_NUMBER_SIGN = re.compile(r"(?<!\w)#(?=\d)")  # #1043 is 1043
_HALF_DAY = re.compile(r"(?<=\d)\s?([ap])(?:m|\.m\.?)(?!\w)", re.IGNORECASE)
_PLURAL = re.compile(r"\b([A-Z]{2,}|[^\W\d_]+\d+)s\b")  # PDFs, P60s
_JOINS = frozenset(("and", "or", "nor", "with", "vs", "versus"))  # words in any order
_SENTENCE = re.compile(r"(?<!\.[^\W\d_])[.!?\u3002\uff01\uff1f](?=\s|$)|[\r\n\u3002\uff01\uff1f]+")
_GREETING = re.compile(r"\bgood (?:morning|afternoon|evening|night|day)\b", re.IGNORECASE)
# Words that say nothing of what a text is about: those of negations and greetings among them.
_SMALL_WORDS = (
    "a am an and any are as at be been but by can cannot could did didn do does doesn don done "
    "for from get got had has have how i if in is it its just me must my never no nobody none not "
    "nothing now of off on one or our out please shall should so still t that the their them then "
    "there these they this those to too us was we were what when where which who why will with "
    "without would you your hello hi hey dear thank thanks many advance kind best regards "
    "greetings cheers sincerely good more most very aint arent cant couldnt didnt doesnt dont "
    "hadnt hasnt havent isnt shouldnt wasnt werent wont wouldnt"
)
SMALL_WORDS = frozenset(_SMALL_WORDS.split())
# What has one of these does not do what it should.
_FAULTS = frozenset(("broken", "broke", "dead", "defective", "down", "failed", "fails", "faulty"))


class _Facts(NamedTuple):
    numbers: frozenset[str]
    negates: bool
    tokens: tuple[str, ...]
    words: frozenset[str]  # without the article "a"
    bases: frozenset[str]  # of words; particles also with the word before them, as "log in"
    opposites: frozenset[str]  # of any of its bases
    denied: frozenset[str]
    stems: frozenset[str]
    roles: dict[str, tuple[str, str]]  # the words before and after each of _ROLES
    names: frozenset[str]
    signs: frozenset[str]  # those of units as the words that they stand for
    sentences: tuple[frozenset[str], ...]  # the stems of each, if there are several


@functools.lru_cache(1 << 16)
def _read(text: str) -> _Facts:
    text = _NUMBER_SIGN.sub("", _GREETING.sub(" ", text))
    signs = frozenset(tokenize(text, signs=True)).difference(tokenize(text))
    text = _plain(text)
    tokens = tokenize(text)
    words = frozenset(tokens)
    verbs = split_particles(tokens)
    forms = bases(verbs)
    codes = {word for word in words if _DIGITS.search(word) and _NO_DIGIT.search(word)}
    codes.update(map(str.lower, _LETTER.findall(text)))
    parts = [part for part in _SENTENCE.split(text) if part and part.strip()]
    several = len(parts) > 1 and not _ASKS.search(text)  # a question may have a reason beside it
    return _Facts(
        numbers(text),
        negates(text),
        tuple(verbs),
        words - ({"a"} - codes),
        forms,
        frozenset().union(*map(_opposites_of, forms)),
        denied(text),
        _stems(verbs),
        _roles(verbs),
        names(text) | codes,
        frozenset(base(_UNITS.get(nfkc(sign), sign)) for sign in signs),
        tuple(_stems(split_particles(tokenize(part))) for part in parts) if several else (),
    )


def _plain(text: str) -> str:
    """Write amounts alike, and acronyms and codes in singular."""
    text = _AMOUNT.sub(lambda found: f" {found[2]} {_UNITS[found[1]]} ", text)
    text = _UNIT.sub(lambda found: f" {_UNITS[found[0].strip().lower()]} ", text)
    return _PLURAL.sub(r"\1", _HALF_DAY.sub(r"\1m", text))  # 5 p.m. is 5pm


def _stems(words: Iterable[str]) -> frozenset[str]:
    about = frozenset(words) - SMALL_WORDS
    return frozenset(base(word)[:_STEM] for word in about if not _DIGITS.search(word))


def _roles(tokens: Sequence[str]) -> dict[str, tuple[str, str]]:
    found = dict[str, tuple[str, str]]()
    role, before = "", ""
    for token in tokens:
        if token in _ROLES:
            role = token
        elif token not in SMALL_WORDS and not _DIGITS.search(token):
            word = base(token)
            if role:
                found[role] = before, word
            role, before = "", word
    return found


def _compare(first: _Facts, second: _Facts) -> tuple[float, ...]:
    missing = bool(first.numbers - second.numbers), bool(second.numbers - first.numbers)
    both = first.numbers and second.numbers
    moved = both and numbers_moved(first.tokens, second.tokens, SMALL_WORDS.union(_ROLES))
    opposites = _opposites(first, second)
    # What is not open is closed.
    affirmed = {(a, b) for a, b in opposites if (a in first.denied) == (b in second.denied)}
    for verbs, words in _CONVERSES:
        if first.words.isdisjoint(words) != second.words.isdisjoint(words):
            affirmed = {pair for pair in affirmed if not verbs.issuperset(pair)}
    first_names, second_names = first.names - second.names, second.names - first.names
    apart = {base(name)[:_STEM] for name in first.names | second.names}
    apart |= {word[:_STEM] for pair in opposites for word in pair}
    signs, others = first.signs - second.bases, second.signs - first.bases
    apart |= {sign[:_STEM] for sign in signs ^ others}
    shared, either = (first.stems & second.stems) - apart, (first.stems | second.stems) - apart
    alike = len(shared) >= _ALIKE * len(either)
    related = len(shared) >= _RELATED * len(either)
    clear = any(alike or (related and SMALL_WORDS.isdisjoint(pair)) for pair in affirmed)
    swapped = (alike and _swapped(first, second)) or _exchanged(first.tokens, second.tokens)
    for role, other in (("with", "without"), *((("to", "from"), ("into", "from")) * alike)):
        swapped = swapped or _meets(first.roles, role, second.roles, other)
        swapped = swapped or _meets(second.roles, role, first.roles, other)
    affirming, denying = (second, first) if first.negates else (first, second)
    faulty = bool((affirming.words & _FAULTS) - denying.words)
    found = (
        missing[0] != missing[1],
        all(missing) or bool(moved) or (alike and _signs_differ(signs, others)),
        alike and first.negates != second.negates and affirmed == opposites and not faulty,
        clear or swapped,
        alike and bool(first_names - second.words) and bool(second_names - first.words),
        _adds_a_sentence(first, second) or _adds_a_sentence(second, first),
    )
    one = not any(found) and _one_word_differs(first.tokens, second.tokens)
    share = len(first.bases & second.bases) / max(1, len(first.bases | second.bases))
    return *found, one, min(1.0, 2 * share)


def _one_word_differs(first: Sequence[str], second: Sequence[str]) -> bool:
    """Return whether texts of three words or more differ in one, no small word and no number."""
    if len(first) != len(second) or len(first) < 3:
        return False
    pairs = zip(map(base, first), map(base, second), strict=True)
    apart = [word for pair in pairs if pair[0] != pair[1] for word in pair]
    return len(apart) == 2 and SMALL_WORDS.isdisjoint(apart) and not any(map(_DIGITS.match, apart))


def _opposites(first: _Facts, second: _Facts) -> set[tuple[str, str]]:
    """Find the pairs of opposites that two texts differ in."""
    if first.opposites.isdisjoint(second.bases):
        return set()
    words, others = first.bases - second.bases, second.bases - first.bases
    return {(word, other) for word in words for other in _opposites_of(word) & others}


@functools.lru_cache(1 << 16)
def _opposites_of(word: str) -> frozenset[str]:
    """Return what a base would be beside as an opposite; it need not be a word."""
    found = set(_OPPOSITES.get(word, ()))
    verb, _, particle = word.rpartition(" ")
    if particle in ("on", "off") or (verb not in ("", "fill") and particle in PARTICLES):
        found.add(f"{verb} {PARTICLES[particle]}".strip())
    for one, other, least in _BEGINNINGS:
        for old, new in ((one, other), (other, one)):
            rest = word.removeprefix(old)
            if len(rest) >= least and rest not in _OTHERS and word == old + rest:
                found.add(new + rest)
    return frozenset(found)


def _swapped(first: _Facts, second: _Facts) -> bool:
    """Return whether words swap places, such as "from A to B" and "from B to A"."""
    roles = first.roles.keys() & second.roles.keys()
    both = {role: (first.roles[role], second.roles[role]) for role in roles}
    after = {(role, one[1], other[1]) for role, (one, other) in both.items() if one[1] != other[1]}
    moved = {(one, other) for _, one, other in after}
    return (
        any((other, one) in moved for one, other in moved)
        or any(one == other[::-1] != other for one, other in both.values())
        or (first.stems == second.stems and any(role != "to" for role, *_ in after))
    )


def _meets(
    first: dict[str, tuple[str, str]], role: str, second: dict[str, tuple[str, str]], other: str
) -> bool:
    """Return whether a word has a role in the first text alone, another in the second alone."""
    word, none = first.get(role, ("", ""))[1], ("", "")
    alone = word not in (first.get(other, none)[1], second.get(role, none)[1])
    return alone and word == second.get(other, none)[1]


def _exchanged(first: Sequence[str], second: Sequence[str]) -> bool:
    """Return whether the texts differ in two words that swap places: salt in the sugar."""
    pairs = [*zip(first, second, strict=False)]
    moved = [at for at, (one, other) in enumerate(pairs) if one != other]
    if len(first) != len(second) or len(moved) != 2:
        return False
    (one, other), last = (pairs[at] for at in moved)
    between = first[moved[0] + 1 : moved[1]]
    return (
        last == (other, one)
        and bool(between)
        and _JOINS.isdisjoint(between)
        and not any(word in SMALL_WORDS or _DIGITS.search(word) for word in last)
    )


def _adds_a_sentence(first: _Facts, second: _Facts) -> bool:
    """Return whether one sentence of the first text is about the second, and another is not."""
    shares = [len(stems & second.stems) / len(stems) for stems in first.sentences if len(stems) > 1]
    return bool(shares) and min(shares) < 1 - _ALIKE and max(shares) >= _ALIKE


def _signs_differ(first: frozenset[str], second: frozenset[str]) -> bool:
    """Return whether a text has a sign that the other lacks; of pictures, both must have one."""
    left, right = first - second, second - first
    pictures = all(unicodedata.category(sign[0]) == "So" for sign in left | right)
    return bool(left or right) and (not pictures or bool(left and right))


def compare_words(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Compare the words of pairs of texts: float64 [m, len(GUARDS) + 1].

    1 where a pair has the guard; last, twice the share of their words that both texts have, at
    most 1. Vectors of texts with common words are near for these alone.

    >>> compare_words(["I can print", "room 12"], ["I cannot print", "room 21"])[:, :4]
    array([[0., 0., 1., 0.],
           [0., 1., 0., 0.]])
    """
    pairs = zip(map(_read, first), map(_read, second), strict=True)
    rows = [_compare(one, other) for one, other in pairs]
    return np.array(rows, np.float64).reshape(-1, len(GUARDS) + 1)
