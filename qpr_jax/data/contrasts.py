"""Texts that mean something else and differ in one word: a negation, a number or an opposite.

Rules for English. Of other texts they make few contrasts or none.
"""

from __future__ import annotations

import importlib.resources
import itertools
import random
import re

from qpr_jax.text.differences import base

# In each line, sides between slashes: a word of a side means something else than those of the
# others. Forms of a word that only differ in their ending are not listed.
_GROUPS = importlib.resources.files("qpr_jax.data").joinpath("contrasts.txt")
ALTERNATIVES: dict[str, list[str]] = {}  # the words that a base of a word may be replaced by
_LISTED: set[str] = set()
for _group in _GROUPS.read_text("utf-8").splitlines():
    for _side, _other in itertools.permutations(map(str.split, _group.split("/")), 2):
        for _word in _side:
            ALTERNATIVES.setdefault(base(_word), []).extend(_other)
            _LISTED.add(_word)
_NEGATED = re.compile(
    r"\b(?:(can)(?:not|'t| not)"
    r"|(do|does|did|is|are|was|were|should|would|could|has|have)(?:n't| not))\b",
    re.IGNORECASE,
)
_AFFIRMED = re.compile(
    r"\b(?:can|could|should|would|will|do|does|did|is|are|was|were|has|have)"
    r"(?: (?:i|you|we|they|he|she|it|people|someone|there|this|that))?\b",
    re.IGNORECASE,
)
# "Is it not free?" asks the same as "Is it free?"; "Can I not log in?" does not.
_YES_OR_NO = re.compile(
    r"\W*(?:is|are|was|were|do|does|did|has|have|will|would|should|could)(?:n't)?\b", re.IGNORECASE
)
_NEGATION = re.compile(r"\b(?:not?|never|cannot|without)\b|n't\b", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.,])[1-9]\d{0,5}(?![\w.,]*\d|[a-z])")
_WORD = re.compile(r"[^\W\d_]+")
_ENDING = re.compile("(?:s|ed|ing)$")


def contrasts(text: str, rng: random.Random) -> list[str]:
    """Return at most three contrasts: negated or affirmed, another number, an opposite."""
    return [*filter(None, (negated(text), other_number(text, rng), opposite(text, rng)))]


def negated(text: str) -> str:
    """Add "not" after the first auxiliary and its pronoun, or take a negation away; "" if none."""
    text = text.replace("\u2019", "'")
    if (match := _NEGATED.search(text)) and not _YES_OR_NO.match(text):
        return text[: match.start()] + (match[1] or match[2]) + text[match.end() :]
    if _YES_OR_NO.match(text) or _NEGATION.search(text):
        return ""
    if match := _AFFIRMED.search(text):
        return f"{text[: match.end()]} not{text[match.end() :]}"
    return ""


def other_number(text: str, rng: random.Random) -> str:
    """Raise one number by at least 1, at most a third of it (or 2) and 30; "" without a number."""
    matches = [*_NUMBER.finditer(text)]
    if not matches:
        return ""
    match = rng.choice(matches)
    number = int(match[0])
    other = number + rng.randint(1, max(2, min(number // 3, 30)))
    return text[: match.start()] + str(other) + text[match.end() :]


def opposite(text: str, rng: random.Random) -> str:
    """Replace one word by an opposite, or by another day, month, color or count.

    "" if no word has one.
    """
    matches = [match for match in _WORD.finditer(text) if base(match[0].lower()) in ALTERNATIVES]
    if not matches:
        return ""
    match = rng.choice(matches)
    word = match[0].lower()
    other = rng.choice(ALTERNATIVES[base(word)])
    if word not in _LISTED and (ending := _ENDING.search(word)):
        other = _with_ending(other, ending[0])
    if match[0][0].isupper():
        other = other.capitalize()
    return text[: match.start()] + other + text[match.end() :]


def _with_ending(word: str, ending: str) -> str:
    """Add s, ed or ing to a word."""
    if ending == "s":
        return word + ("es" if re.search("(?:s|x|ch|sh)$", word) else "s")
    doubled = re.sub(r"^([^aeiou]*[aeiou])([bdgmnpt])$", r"\1\2\2", word)
    return doubled.removesuffix("e") + ending
