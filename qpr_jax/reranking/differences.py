"""Why two texts may not mean the same: words, numbers and negation in which they differ."""

from __future__ import annotations

from typing import NamedTuple

from qpr_jax.index.statistics import Statistics
from qpr_jax.text.differences import missing_words, negation_differs, numbers, numbers_differ

WordWeights = tuple[tuple[str, float], ...]


class Differences(NamedTuple):
    """In what a text and another one differ.

    Attributes:
      text_words: the words that the other lacks, each with its weight, heaviest first: log((N + 1)
        / (df + 1)), where df of N indexed questions have the word.
      other_words: those that the text lacks, likewise.
      text_numbers: the numbers that the other lacks, as digits.
      other_numbers: those that the text lacks.
      negation: whether exactly one of the two negates.
    """

    text_words: WordWeights = ()
    other_words: WordWeights = ()
    text_numbers: tuple[str, ...] = ()
    other_numbers: tuple[str, ...] = ()
    negation: bool = False


def find_differences(text: str, other: str, statistics: Statistics) -> Differences:
    """Compare two texts; `statistics` are of the questions that give words their weights."""
    first, second = numbers(text), numbers(other)
    if not numbers_differ(text, other):
        first = second = frozenset()
    return Differences(
        _weighted(missing_words(other, text), statistics),
        _weighted(missing_words(text, other), statistics),
        tuple(sorted(first - second)),
        tuple(sorted(second - first)),
        negation_differs(text, other),
    )


def _weighted(words: list[str], statistics: Statistics) -> WordWeights:
    weights = statistics.word_weights(words).tolist()
    return tuple(sorted(zip(words, weights, strict=True), key=lambda item: (-item[1], item[0])))
