"""Changes of a question: what people type, which keeps its meaning, and what gives it another."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.misspelling import misspell
from qpr_jax.text.differences import negates, numbers

# Makes the changed text of a text; None where the change does not fit.
Make = Callable[[str, np.random.Generator], str | None]
EXAMPLE = "How do I learn Python in 2016?"


class Change(NamedTuple):
    """A change.

    Attributes:
      title: as pages call it.
      make: the function.
      fits: whether the change gives another meaning than a paraphrase of the text has, too;
        None where the meaning stays.
    """

    title: str
    make: Make
    fits: Callable[[str, str, str], bool] | None = None


def typo(kind: str) -> Make:
    """A typo of one kind of `misspelling.KINDS`, in one word of the text."""
    return lambda text, rng: misspell(text, rng, 1, (kind,))


def without_punctuation(text: str) -> str:
    """Leave all punctuation out; words on both sides of a hyphen or slash stay apart."""
    return " ".join(re.sub(r"[^\w\s]", "", re.sub(r"[-/]", " ", text)).split())


def with_please(text: str) -> str:
    """Put ", please" at the end of the question."""
    start = text.rstrip(" ?.!")
    return f"{start}, please{text[len(start) :].strip()}"


_AUXILIARY = "(?:do|does|did|can|could|should|would|will|must)"
_SUBJECT = "(?:I|you|we|they|he|she|it|people|someone|one|women|men|girls|guys|students)"
_ASKS = re.compile(
    rf"(?P<start>(?:why|how|where|when|(?:what|which)(?: \w+)?) {_AUXILIARY} {_SUBJECT}"
    r"|why (?:am|is|are|was|were) (?:I|you|we|they|he|she|it))"
    # What do you not think: nobody asks so.
    r" (?P<rest>(?!(?:think|know|mean|feel|say|call|believe|be like|look like)\b)[a-z].*)",
    re.IGNORECASE,
)


def negated(text: str) -> str | None:
    """Put "not" behind the subject of a question that asks why, how, where, when, what or which.

    Only where the subject is one word of a short list, so that the result is a sentence. Yes-or-no
    questions are left out: whether it is good and whether it is not good ask the same.
    """
    match = _ASKS.fullmatch(text)
    if match is None or negates(text) or re.search(r"[.?!;:].*\w", text):
        return None
    return f"{match['start']} not {match['rest']}"


def not_negated_too(text: str, changed: str, paraphrase: str) -> bool:
    """Whether the paraphrase has no negation either."""
    return not negates(paraphrase)


_NUMBER = re.compile(r"(?<![\w.,$/:-])[1-9]\d{0,6}(?![\w%]|[.,:/-]\d)")
_YEARS = range(1900, 2100)


def renumbered(text: str, rng: np.random.Generator) -> str | None:
    """Put another number in the place of one, about as large and as round; a year moves by 1 to 3.

    The new number is none of the others of the text.
    """
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
    """Whether the paraphrase has the number that was changed, and not the new one."""
    old, new = numbers(text) - numbers(changed), numbers(changed) - numbers(text)
    return bool(old) and old <= numbers(paraphrase) and not new & numbers(paraphrase)


CHANGES = {
    "neighbor": Change("a letter hit next to its key", typo("neighbor")),
    "drop": Change("a letter left out", typo("drop")),
    "swap": Change("two letters swapped", typo("swap")),
    "two": Change("typos of any kind in two words", lambda text, rng: misspell(text, rng, 2)),
    "lower": Change("lower case", lambda text, rng: text.lower()),
    "bare": Change("no punctuation", lambda text, rng: without_punctuation(text)),
    "please": Change('", please" at the end', lambda text, rng: with_please(text)),
    "negation": Change('"not" put in', lambda text, rng: negated(text), not_negated_too),
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
    change = CHANGES[name]
    rng = np.random.default_rng(0)
    order = np.arange(len(texts))
    if change.fits is None:
        order = np.sort(np.random.default_rng(1).permutation(order)[:most])
    found: list[tuple[int, str]] = []
    for query in order.tolist():
        text, others = texts[query], paraphrases[query]
        changed = change.make(text, rng)
        if changed is None:
            continue
        if change.fits is None or all(change.fits(text, changed, other) for other in others):
            found.append((query, changed))
    return Changed(np.array([q for q, _ in found], np.int64), [text for _, text in found])


def example(name: str) -> str:
    """What a change makes of `EXAMPLE`."""
    return CHANGES[name].make(EXAMPLE, np.random.default_rng(1)) or ""
