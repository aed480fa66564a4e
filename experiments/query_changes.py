"""Changes of a question: what people type, which keeps its meaning, and what gives it another."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from qpr_jax.text.differences import negates, numbers

# Makes the changed text of a text; None if the change does not fit.
Make = Callable[[str, np.random.Generator], str | None]


class Change(NamedTuple):
    """A change."""

    title: str  # what pages call it
    make: Make
    # (text, changed, paraphrase) -> whether the paraphrase does not have the new meaning; None if
    # the change keeps the meaning.
    fits: Callable[[str, str, str], bool] | None = None


_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_TYPED = re.compile(r"[^\W\d_]{4,}")  # words that get a typo
_TYPOS = ("neighbor", "drop", "swap", "double")


def misspell(text: str, rng: np.random.Generator, words: int, kinds: Sequence[str]) -> str:
    """Make a typo in some words of four letters or more; the first letter stays.

    kinds: of `_TYPOS`, drawn for each word; if a kind is impossible, a letter is doubled.
    """
    places = [*_TYPED.finditer(text)]
    chosen = {int(place) for place in rng.permutation(len(places))[:words]}
    for place in sorted(chosen, reverse=True):
        match = places[place]
        kind = kinds[int(rng.integers(len(kinds)))]
        text = text[: match.start()] + _typo(match[0], kind, rng) + text[match.end() :]
    return text


def _typo(word: str, kind: str, rng: np.random.Generator) -> str:
    at = int(rng.integers(1, len(word) - 1))
    letter, before, after = word[at], word[:at], word[at + 1 :]
    if kind == "drop":
        return before + after
    if kind == "swap" and after[0] != letter:
        return before + after[0] + letter + after[1:]
    near = "".join(
        row[max(0, place - 1) : place] + row[place + 1 : place + 2]
        for row in _ROWS
        if (place := row.find(letter.lower())) >= 0
    )
    if kind == "neighbor" and near:
        return before + near[int(rng.integers(len(near)))] + after
    return before + letter + letter + after


def bare(text: str, rng: np.random.Generator) -> str:
    """Leave all punctuation out; words on both sides of a hyphen or slash stay apart."""
    return " ".join(re.sub(r"[^\w\s]", "", re.sub(r"[-/]", " ", text)).split())


def with_please(text: str, rng: np.random.Generator) -> str:
    """Put ", please" at the end of the question."""
    start = text.rstrip(" ?.!")
    return f"{start}, please{text[len(start) :].strip()}"


_AUXILIARY = "(?:do|does|did|can|could|should|would|will|must)"
_SUBJECT = "(?:I|you|we|they|he|she|it|people|someone|one|women|men|girls|guys|students)"
_ASKS = re.compile(
    rf"(?P<start>(?:why|how|where|when|(?:what|which)(?: \w+)?) {_AUXILIARY} {_SUBJECT}"
    r"|why (?:am|is|are|was|were) (?:I|you|we|they|he|she|it))"
    # Nobody asks "what do you not think".
    r" (?P<rest>(?!(?:think|know|mean|feel|say|call|believe|be like|look like)\b)[a-z].*)",
    re.IGNORECASE,
)


def negated(text: str, rng: np.random.Generator) -> str | None:
    """Put "not" behind the subject of a question that asks why, how, where, when, what or which.

    Only if the subject is one word of a short list, so that the result is a sentence. Yes-or-no
    questions do not fit: whether it is good and whether it is not good ask the same.
    """
    match = _ASKS.fullmatch(text)
    if match is None or negates(text) or re.search(r"[.?!;:].*\w", text):
        return None
    return f"{match['start']} not {match['rest']}"


_NUMBER = re.compile(r"(?<![\w.,$/:-])[1-9]\d{0,6}(?![\w%]|[.,:/-]\d)")
_YEARS = range(1900, 2100)


def renumbered(text: str, rng: np.random.Generator) -> str | None:
    """Replace a number by one of about the same size and as round; a year moves by 1 to 3."""
    matches = [*_NUMBER.finditer(text)]
    if not matches:
        return None
    match = matches[rng.integers(len(matches))]
    old = int(match[0])
    unit = 1 if old in _YEARS else 10 ** (len(match[0]) - len(match[0].rstrip("0")))
    most = 3 if old in _YEARS else max(2, old // unit // 4)
    step = int(rng.integers(1, most + 1)) * unit
    new = old - step if rng.random() < 0.5 and old > step else old + step
    if str(new) in numbers(text):
        return None
    return f"{text[: match.start()]}{new}{text[match.end() :]}"


def same_numbers(text: str, changed: str, paraphrase: str) -> bool:
    """Return whether the paraphrase has the number that was changed, and not the new one."""
    old, new = numbers(text) - numbers(changed), numbers(changed) - numbers(text)
    return bool(old) and old <= numbers(paraphrase) and not new & numbers(paraphrase)


CHANGES = {
    "neighbor": Change("a neighboring key", partial(misspell, words=1, kinds=("neighbor",))),
    "drop": Change("a missing letter", partial(misspell, words=1, kinds=("drop",))),
    "swap": Change("two swapped letters", partial(misspell, words=1, kinds=("swap",))),
    "two": Change("typos in two words", partial(misspell, words=2, kinds=_TYPOS)),
    "lower": Change("lower case", lambda text, rng: text.lower()),
    "bare": Change("no punctuation", bare),
    "please": Change('", please"', with_please),
    "negation": Change('"not" added', negated, lambda text, new, other: not negates(other)),
    "number": Change("another number", renumbered, same_numbers),
}
SAME = tuple(name for name, change in CHANGES.items() if change.fits is None)
OTHER = tuple(name for name in CHANGES if name not in SAME)


class Changed(NamedTuple):
    """Queries after a change: their positions among all queries, int64 [n], and their texts."""

    queries: np.ndarray
    texts: list[str]


def change_queries(
    name: str, texts: Sequence[str], paraphrases: Sequence[Sequence[str]], most: int
) -> Changed:
    """Make the changed texts of queries; the same ones each time.

    Args:
      texts: of the queries.
      paraphrases: of each query.
      most: how many queries get a change that keeps the meaning, drawn at random. A change of the
        meaning is made in every query that it fits, unless a paraphrase has the new meaning.
    """
    _, make, fits = CHANGES[name]
    rng = np.random.default_rng(0)
    order = np.arange(len(texts))
    if fits is None:
        order = np.sort(np.random.default_rng(1).permutation(order)[:most])
    found: dict[int, str] = {}
    for query in order.tolist():
        text = texts[query]
        changed = make(text, rng)
        if changed is None:
            continue
        if fits is None or all(fits(text, changed, other) for other in paraphrases[query]):
            found[query] = changed
    return Changed(np.array([*found], np.int64), [*found.values()])
