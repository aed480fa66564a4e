"""A file of found pairs, as a review reads it: scores of all, texts of those that may be asked."""

from __future__ import annotations

import array
import hashlib
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpr_jax.data.columns import is_missing
from qpr_jax.data.tables import Fields, input_name, read_rows
from qpr_jax.duplicates.sampling import Strata, make_strata
from qpr_jax.errors import UserError

COLUMNS = ("id1", "id2", "question1", "question2")
MEASURES = ("score", "distance")  # the first that the file has decides
_CHOICES = 500  # pairs of a stratum that may be asked
_SURROGATES = 0.95, 0.05  # probability of the nearest and of the farthest, where there is no score
_REMEDY = "give what `qpr duplicates` wrote, or another format with {format}"


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
      measure: one of MEASURES, by which pairs are accepted.
      values: float64 [P], scores or distances, of the best pair first.
      strata: by score; by the rank of the distance where there is no score.
      choices: for each stratum, keys of pairs in the random order in which they are asked.
      stratum: of the pairs of `pairs`, by key.
      pairs: those that may be asked, and those asked for, by key.
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


def read_found_pairs(path: str, *, format: str = "", keys: Sequence[int] = ()) -> FoundPairs:
    """Read a file of pairs twice: their scores, then the texts of those that may be asked.

    Holds about 110 bytes a pair, and the texts of at most 500 pairs a stratum. Nothing depends on
    the order of rows.

    Args:
      path: of a file with COLUMNS and one of MEASURES.
      format: as of `data.tables.read_rows`.
      keys: of further pairs whose texts are read.

    Raises:
      UserError: a row is no pair, the file has none, or has one twice.
    """
    source = input_name(path)
    all_keys, scores, distances = array.array("Q"), array.array("d"), array.array("d")
    for key, pair in _rows(path, format):
        all_keys.append(key)
        scores.append(math.nan if pair.score is None else pair.score)
        distances.append(math.nan if pair.distance is None else pair.distance)
    if not all_keys:
        raise UserError(f"{source}: expected pairs, got none", remedy="accept more pairs")
    numbers = np.frombuffer(all_keys, np.uint64)
    _refuse_repeated(numbers, path, format)
    measure, values, probabilities = _measured(np.array(scores), np.array(distances), source)
    strata = make_strata(probabilities)
    stratum = strata.of(probabilities)
    choices, chosen = [], {*keys}
    for number in range(len(strata.sizes)):
        mine = np.sort(numbers[stratum == number])[:_CHOICES].tolist()
        choices.append(mine)
        chosen.update(mine)
    pairs = dict(_rows(path, format, chosen))
    rows = np.flatnonzero(np.isin(numbers, np.array([*pairs], np.uint64)))
    numbers_of = dict(zip(numbers[rows].tolist(), stratum[rows].tolist(), strict=True))
    values = np.sort(values)[:: -1 if measure == "score" else 1]
    return FoundPairs(measure, values, strata, choices, numbers_of, pairs)


def _refuse_repeated(keys: np.ndarray, path: str, format: str) -> None:
    """UserError where the file has a pair twice."""
    ordered = np.sort(keys)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]][:1].tolist()
    for _, pair in _rows(path, format, {*repeated}) if repeated else ():
        ids = f"{pair.id1!r:.50} and {pair.id2!r:.50}"
        what = f"{input_name(path)}: expected each pair once, got {ids} again"
        raise UserError(what, remedy="leave out the second")


def _measured(
    scores: np.ndarray, distances: np.ndarray, source: str
) -> tuple[str, np.ndarray, np.ndarray]:
    """The measure, its values, and probabilities to begin with."""
    if not np.isnan(scores).any():
        return MEASURES[0], scores, scores
    if not np.isnan(scores).all() or np.isnan(distances).any():
        what = f"{source}: expected a score of every pair, or a distance, got some without"
        raise UserError(what, remedy="find the pairs again")
    _, rank = np.unique(distances, return_inverse=True)
    highest, lowest = _SURROGATES
    below = np.concatenate([[0], np.cumsum(np.bincount(rank))])[rank] / len(rank)
    return MEASURES[1], distances, highest - (highest - lowest) * below


def _rows(
    path: str, format: str, chosen: Container[int] | None = None
) -> Iterator[tuple[int, FoundPair]]:
    """Yield the key of each pair, and the pair; UserError for a row that is none.

    chosen: keys of pairs, whose rows alone are read in full.
    """
    source = input_name(path)

    def choose(names: Sequence[str]) -> list[str]:
        measures = [name for name in MEASURES if name in names]
        missing = [name for name in COLUMNS if name not in names]
        if missing or not measures:
            expected = missing[0] if missing else "score"
            what = f"{source}: expected a column `{expected}`, got {', '.join(names):.80}"
            raise UserError(what, remedy=_REMEDY)
        return [*COLUMNS, *measures]

    for line, fields in read_rows(path, choose, format=format):
        if chosen is not None and not isinstance(fields, str):
            key = pair_key(fields.get("id1"), fields.get("id2"))
            if key not in chosen:
                continue
        pair = fields if isinstance(fields, str) else _parse(fields)
        if isinstance(pair, str):
            what = f"{source}, line {line}: {pair}"
            raise UserError(what, remedy="find the pairs again, or correct the line")
        yield pair_key(pair.id1, pair.id2), pair


def _parse(fields: Fields) -> FoundPair | str:
    """The pair of a row, or what is wrong with it."""
    values = [fields.get(name) for name in COLUMNS]
    for name, value in zip(COLUMNS, values, strict=True):
        if is_missing(value) or isinstance(value, float | list | dict):
            return f"expected a value in `{name}`, got {value!r:.40}"
    numbers: list[float | None] = []
    for name, largest in zip(MEASURES, (1.0, math.inf), strict=True):
        cell = fields.get(name)
        try:
            empty = is_missing(cell) or not str(cell).strip()
            number = None if empty else float(str(cell))
        except ValueError:
            number = math.nan
        if number is not None and not 0 <= number <= largest:
            expected = "a probability" if name == "score" else "0 or more"
            return f"expected {expected} in `{name}`, got {cell!r:.40}"
        numbers.append(number)
    return FoundPair(*map(str, values), *numbers)  # type: ignore[arg-type]
