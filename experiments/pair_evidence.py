"""What a table says of two of its texts: their cosine, how dense it is there, and guards.

A guard says that two texts differ in something that vectors blur: a number, its order, a negation,
an opposite word, a name or a code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from functools import cached_property

import numpy as np

from experiments.transfer_tables import Table
from qpr_jax.data.contrasts import ALTERNATIVES
from qpr_jax.encoders.base import Encoder
from qpr_jax.models import unit_rows
from qpr_jax.text.differences import names, negates, numbers
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.training.teacher import cached_vectors

NEIGHBORS = slice(1, 6)  # the second to sixth nearest texts
GUARDS = (
    *("number on one side", "other number", "other order of numbers", "negation on one side"),
    *("opposite word", "name on one side", "other name"),
)
LEAST_DISTANCE = 1e-3  # of two texts, 1 - cosine
_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")
_CODE = re.compile(r"\b(?=\w*\d)(?=\w*[^\W\d_])\w{2,}\b")


class Evidence:
    """A table with its vectors by an encoder.

    Attributes:
      cosines: float32 [n, n], of the texts, -2 on the diagonal.
      to_queries: float32 [q, k], of the queries and the texts that are indexed.
    """

    def __init__(self, table: Table, encoder: Encoder) -> None:
        self.table = table
        vectors = unit_rows(np.asarray(cached_vectors(encoder, table.texts), np.float32))
        queries = unit_rows(np.asarray(cached_vectors(encoder, table.queries), np.float32))
        self.cosines = vectors @ vectors.T
        np.fill_diagonal(self.cosines, -2)
        self.to_queries = queries @ vectors[table.indexed].T
        self.first, self.second = np.triu_indices(len(table.texts), 1)

    @cached_property
    def same(self) -> np.ndarray:
        """Whether the texts of each pair of `first` and `second` mean the same: bool [P]."""
        groups = self.table.groups
        return np.asarray(groups[self.first] == groups[self.second])

    @cached_property
    def answers(self) -> np.ndarray:
        """Which indexed texts answer each query: bool [q, k]."""
        groups = self.table.groups[self.table.indexed]
        return np.asarray(self.table.answers[:, None] == groups[None])

    @cached_property
    def pair_guards(self) -> np.ndarray:
        """The guards of all texts, bool [guards, n, n]."""
        return guards(self.table.texts, self.table.texts)

    @cached_property
    def hit_guards(self) -> np.ndarray:
        """The guards of queries and indexed texts, bool [guards, q, k]."""
        return guards(self.table.queries, [self.table.texts[i] for i in self.table.indexed])

    def of_pairs(self, matrix: np.ndarray) -> np.ndarray:
        """Read a matrix [n, n] at the pairs: [P]."""
        return np.asarray(matrix[self.first, self.second])

    def densities(self) -> np.ndarray:
        """Return the mean cosine of each text to its second to sixth nearest: float32 [n]."""
        nearest = -np.sort(-self.cosines, axis=1)[:, NEIGHBORS]
        return np.asarray(nearest.mean(axis=1))

    @cached_property
    def candidates(self) -> np.ndarray:
        """Whether one text of each pair is among the ten nearest of the other: bool [P]."""
        kth = -np.sort(-self.cosines, axis=1)[:, 9:10].min(axis=1)
        near = self.of_pairs(self.cosines)
        return np.asarray(near >= np.minimum(kth[self.first], kth[self.second]))


def distance_ratio(
    cosines: np.ndarray, densities: np.ndarray, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Return the logarithm of the mean distance around two texts over their own: float [P].

    It scales a distance to its surroundings (Zelnik-Manor and Perona 2004). densities: [n].
    """
    around = np.log(np.maximum(1 - densities, LEAST_DISTANCE))
    between = np.log(np.maximum(1 - cosines, LEAST_DISTANCE))
    return np.asarray((around[first] + around[second]) / 2 - between)


def guards(texts: Sequence[str], others: Sequence[str]) -> np.ndarray:
    """Return the guards of each text and each other one: bool [len(GUARDS), n, m]."""
    both = texts, others
    number_sides = _missing([*map(numbers, texts)], [*map(numbers, others)])
    ordered = [[_DIGITS.findall(text) for text in side] for side in both]
    sets = [[frozenset(found) for found in side] for side in ordered]
    reordered = _differ(*ordered) & ~_differ(*sets)
    negation = _differ(*([negates(text) for text in side] for side in both))
    named = [[names(text) | _codes(text) for text in side] for side in both]
    words = [
        [{*tokenize(text)} | own for text, own in zip(side, found, strict=True)]
        for side, found in zip(both, named, strict=True)
    ]
    lacks = _lacks(named[0], words[1]), _lacks(named[1], words[0]).T
    return np.stack(
        [
            number_sides[0] ^ number_sides[1],
            number_sides[0] & number_sides[1],
            reordered,
            negation,
            _opposites(texts, others),
            lacks[0] ^ lacks[1],
            lacks[0] & lacks[1],
        ]
    )


def _codes(text: str) -> frozenset[str]:
    """Words of letters and digits, such as X100."""
    return frozenset(word.lower() for word in _CODE.findall(text))


def _missing(
    first: Sequence[Set[str]], second: Sequence[Set[str]]
) -> tuple[np.ndarray, np.ndarray]:
    """Which sets have what the others lack, from both sides: bool [n, m] each."""
    return _lacks(first, second), _lacks(second, first).T


def _lacks(first: Sequence[Set[str]], second: Sequence[Set[str]]) -> np.ndarray:
    """Whether each first set has what each second one lacks: bool [n, m]."""
    places = {item: at for at, item in enumerate(sorted(set().union(*first)))}
    one, other = (np.zeros((len(side), len(places)), np.float32) for side in (first, second))
    for matrix, side in ((one, first), (other, second)):
        for row, items in enumerate(side):
            matrix[row, [places[item] for item in items if item in places]] = 1
    return np.asarray(one.sum(axis=1, keepdims=True) - one @ other.T > 0.5)


def _differ(first: Sequence[object], second: Sequence[object]) -> np.ndarray:
    """Whether each first item differs from each second one: bool [n, m]."""
    numbers_of: dict[object, int] = {}
    one, other = (
        np.array([numbers_of.setdefault(_key(item), len(numbers_of)) for item in side])
        for side in (first, second)
    )
    return np.asarray(one[:, None] != other[None])


def _key(item: object) -> object:
    return tuple(item) if isinstance(item, list) else item


def _opposites(texts: Sequence[str], others: Sequence[str]) -> np.ndarray:
    """Whether a word of one text and one of the other are opposites, and neither has both."""
    one, other = ([{*tokenize(t)} & ALTERNATIVES.keys() for t in side] for side in (texts, others))
    found = np.zeros((len(texts), len(others)), bool)
    by_word: dict[str, list[int]] = {}
    for row, words in enumerate(other):
        for word in words:
            by_word.setdefault(word, []).append(row)
    for row, words in enumerate(one):
        for word in words:
            for opposite in ALTERNATIVES[word]:
                if opposite not in words:
                    kept = [at for at in by_word.get(opposite, ()) if word not in other[at]]
                    found[row, kept] = True
    return found
