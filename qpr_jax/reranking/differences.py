"""Why two texts may not mean the same: words, numbers and negation in which they differ."""

from __future__ import annotations

from typing import NamedTuple

from qpr_jax.reranking.frequencies import Frequencies
from qpr_jax.text.differences import missing_words, negation_differs, numbers, numbers_differ

WordWeights = tuple[tuple[str, float], ...]


class Differences(NamedTuple):
    """In what a text and another one differ.

    Attributes:
      text_words: the words that the other lacks, each with its weight, heaviest first: log((N + 1)
        / (df + 1)), where df of N training questions of the re-ranker have the word. Without a
        re-ranker the weights are 1.
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


class Explanation(NamedTuple):
    """The scores of a query and a question by both stages.

    Attributes:
      distance: by the encoder.
      raw_score: the score that the second stage sorts by; None without a second stage.
      probability: that the two mean the same: `Hit.score`; None without a second stage.
      features: the inputs of the second stage, by name.
      pair_probability: that the two mean the same, by their distance alone, for a pair found among
        all questions; None without a calibration.
      differences: words, numbers and negation in which the two differ.
    """

    distance: float
    raw_score: float | None = None
    probability: float | None = None
    features: dict[str, float] = {}  # noqa: RUF012
    pair_probability: float | None = None
    differences: Differences = Differences()


def find_differences(text: str, other: str, frequencies: Frequencies | None = None) -> Differences:
    """Compare two texts; `frequencies` give words their weights."""
    first, second = numbers(text), numbers(other)
    if not numbers_differ(text, other):
        first = second = frozenset()
    return Differences(
        _weighted(missing_words(other, text), frequencies),
        _weighted(missing_words(text, other), frequencies),
        tuple(sorted(first - second)),
        tuple(sorted(second - first)),
        negation_differs(text, other),
    )


def _weighted(words: list[str], frequencies: Frequencies | None) -> WordWeights:
    if frequencies is None:
        return tuple((word, 1.0) for word in words)
    weights = frequencies.weights(words).tolist()
    return tuple(sorted(zip(words, weights, strict=True), key=lambda item: (-item[1], item[0])))
