"""A file of found pairs, as a review reads it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpr_jax.data.columns import is_missing
from qpr_jax.data.inputs import input_name
from qpr_jax.data.tables import read_values
from qpr_jax.duplicates.sampling import Strata, make_strata
from qpr_jax.errors import UserError

_EXPECTED = "ids, questions, a score from 0 to 1 or none, and a distance"
_SURROGATES = 0.95, 0.05  # probability of the nearest and of the farthest, where there is no score


class FoundPair(NamedTuple):
    """A pair of texts; `score` is None, or the probability that it is one of duplicates."""

    id1: str
    id2: str
    question1: str
    question2: str
    score: float | None
    distance: float | None


@dataclass(frozen=True)
class FoundPairs:
    """The pairs of a file, P of them, and their strata.

    Attributes:
      measure: "score", or "distance" where there are no scores: pairs are accepted by it.
      values: float64 [P], scores or distances, of the best pair first.
      strata: by score; by the rank of the distance where there is no score.
      choices: for each stratum, keys of its pairs in the random order in which they are asked.
      stratum: of the pairs, by key.
      pairs: by key.
    """

    measure: str
    values: np.ndarray
    strata: Strata
    choices: list[list[int]]
    stratum: Mapping[int, int]
    pairs: Mapping[int, FoundPair]


def pair_key(id1: object, id2: object) -> int:
    """A hash of two ids, 64 bits; also where a pair stands in the random order.

    Their order counts: with `--against` each is of a table of its own.
    """
    text = f"{len(str(id1))} {id1} {id2}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def read_found_pairs(path: str, *, format: str = "") -> FoundPairs:
    """Read a file of pairs; nothing depends on the order of its rows.

    Args:
      path: of a file with the columns of `FoundPair`.
      format: as of `data.tables.read_rows`.

    Raises:
      UserError: a row is no pair, the file has none, or has one twice.
    """
    source, pairs = input_name(path), dict[int, FoundPair]()
    rows = read_values(path, FoundPair._fields, _parse, expected=_EXPECTED, format=format)
    for _, pair in rows:
        key = pair_key(pair.id1, pair.id2)
        if key in pairs:
            ids = f"{pair.id1!r:.50} and {pair.id2!r:.50}"
            what = f"{source}: expected each pair once, got {ids} again"
            raise UserError(what, remedy="leave out the second")
        pairs[key] = pair
    if not pairs:
        raise UserError(f"{source}: expected pairs, got none", remedy="accept more pairs")
    scores = np.array([pair.score for pair in pairs.values()], np.float64)
    distances = np.array([pair.distance for pair in pairs.values()], np.float64)
    measure, values, probabilities = _measured(scores, distances, source)
    strata = make_strata(probabilities)
    stratum = dict(zip(pairs, strata.of(probabilities).tolist(), strict=True))
    choices: list[list[int]] = [[] for _ in strata.sizes]
    for key in sorted(pairs):
        choices[stratum[key]].append(key)
    values = np.sort(values)[:: -1 if measure == "score" else 1]
    return FoundPairs(measure, values, strata, choices, stratum, pairs)


def _measured(
    scores: np.ndarray, distances: np.ndarray, source: str
) -> tuple[str, np.ndarray, np.ndarray]:
    """The measure, its values, and probabilities to begin with."""
    if not np.isnan(scores).any():
        return "score", scores, scores
    if not np.isnan(scores).all() or np.isnan(distances).any():
        what = f"{source}: expected a score of every pair, or a distance, got some without"
        raise UserError(what, remedy="find the pairs again")
    _, rank = np.unique(distances, return_inverse=True)
    highest, lowest = _SURROGATES
    below = np.concatenate([[0], np.cumsum(np.bincount(rank))])[rank] / len(rank)
    return "distance", distances, highest - (highest - lowest) * below


def _parse(*cells: object) -> FoundPair | None:
    """The pair of a row; None where it is none."""
    texts, numbers = cells[:4], [_number(cell) for cell in cells[4:]]
    if any(is_missing(text) or isinstance(text, float | list | dict) for text in texts):
        return None
    for number, largest in zip(numbers, (1.0, math.inf), strict=True):
        if number is not None and not 0 <= number <= largest:
            return None
    return FoundPair(*map(str, texts), *numbers)  # type: ignore[arg-type]


def _number(cell: object) -> float | None:
    """The number in a cell; NaN where it has something else, None where it has nothing."""
    if is_missing(cell) or not str(cell).strip():
        return None
    try:
        return float(str(cell))
    except ValueError:
        return math.nan
