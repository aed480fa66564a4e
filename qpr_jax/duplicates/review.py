"""A review of found pairs: which pair comes next, the labels and their file, what they imply."""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import itertools
import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.data.columns import BadRows, read_rows, read_values
from qpr_jax.data.entries import Payload, is_missing
from qpr_jax.data.question_pairs import HIT_SCORE, SCORE, WEIGHT, parse_labeled
from qpr_jax.data.typed_rows import Fields, input_name
from qpr_jax.duplicates.output import Pair, info_of, pair_key, read_other_columns
from qpr_jax.duplicates.pairs import SWEPT
from qpr_jax.duplicates.sampling import (
    BEST_F1,
    Estimate,
    Strata,
    choose_threshold,
    estimate_at,
    make_strata,
    rank_strata,
    share_of_right,
    threshold_of,
)
from qpr_jax.errors import UserError, shortened
from qpr_jax.files import StrPath, locked, write_atomically
from qpr_jax.text.cleaning import folded, without_numbers
from qpr_jax.text.differences import mark_words
from qpr_jax.text.tokenizer import replace_surrogates

_EXPECTED = "ids, questions, a score from 0 to 1 or none, and a distance"
_LOW = (0.05, 0.1, 0.2)  # scores of right hits may be lower than those of right pairs
_NEAREST, _FARTHEST = 0.95, 0.05  # probabilities to begin with, where there is no score


@dataclass(frozen=True)
class FoundPairs:
    """The pairs of a file, P of them, and their strata."""

    option: str  # of `qpr duplicates` that accepts pairs by their values; "" for first hits
    values: np.ndarray  # float64 [P], scores, else minus distances; the best first
    strata: Strata  # by score; by the rank of the distance where there is no score
    stratum: Mapping[int, int]  # of the pairs, by key, in the random order in which they are asked
    pairs: Mapping[int, Pair]  # by key
    copies: int  # pairs of one text, which are not asked
    least: float  # the threshold that they were found with; 0: none, or not known
    columns: tuple[Mapping[str, Payload], Mapping[str, Payload]]  # others of both rows, by id
    path: str
    written: int  # when the file was, in ns


def read_found_pairs(path: str, *, format: str = "") -> FoundPairs:
    """Read a file with the columns of `Pair`, and leave out its copies.

    UserError where a row is no pair, or the file has none, or one twice. The order of its rows does
    not count. format: as of `data.columns.read_rows`.
    """
    source, written, pairs, copies = input_name(path), _written(path), dict[int, Pair](), 0
    for pair in read_values(path, Pair._fields, _parse, expected=_EXPECTED, format=format):
        key = pair_key(pair.id1, pair.id2)
        if key in pairs:
            ids = f"{pair.id1!r:.50} and {pair.id2!r:.50}"
            what = f"{source}: expected each pair once, got {ids} again"
            raise UserError(what, remedy="leave out the second")
        first, second = (without_numbers(folded(text)) for text in (pair.question1, pair.question2))
        if pair.distance != 0 or first != second:
            pairs[key] = pair
        else:
            copies += 1
    if not pairs:
        what = f"{source}: expected pairs of different texts, got none"
        raise UserError(what, remedy="accept more pairs")
    pairs = dict(sorted(pairs.items()))
    option, values = "threshold", np.array([pair.score for pair in pairs.values()], np.float64)
    probabilities = values
    if np.isnan(values).all():
        option = "max_distance"
        values = -np.array([pair.distance for pair in pairs.values()], np.float64)
        share = np.searchsorted(np.sort(-values), -values) / len(values)
        probabilities = _NEAREST - (_NEAREST - _FARTHEST) * share
    if np.isnan(values).any():
        what = f"{source}: expected a score of every pair, or a distance, got some without"
        raise UserError(what, remedy="find the pairs again")
    info = info_of(path)
    if info.get("first_hits"):  # which are drawn at random
        option, probabilities = "", np.full(len(values), 0.5)
    strata = make_strata(probabilities)
    stratum = dict(zip(pairs, strata.of(probabilities).tolist(), strict=True))
    columns, least = read_other_columns(path), info.get("threshold") or 0.0
    facts = stratum, pairs, copies, least, columns, path, written
    return FoundPairs(option, -np.sort(-values), strata, *facts)


def _written(path: str) -> int:
    return os.stat(path).st_mtime_ns if os.path.exists(path) else 0


def _parse(
    id1: object, id2: object, score: object, distance: object, first: object, second: object
) -> Pair | None:
    """Return the pair of a row; None where it is none."""
    texts, numbers = (id1, id2, first, second), (_number(score), _number(distance))
    if any(is_missing(text) or isinstance(text, float | list | dict) for text in texts):
        return None
    for number, largest in zip(numbers, (1.0, math.inf), strict=True):
        if number is not None and not 0 <= number <= largest:
            return None
    apart = math.nan if numbers[1] is None else numbers[1]
    return Pair(str(id1), str(id2), numbers[0], apart, str(first), str(second))


def _number(cell: object) -> float | None:
    """Return the number in a cell; NaN where it has something else, None where it has nothing."""
    if is_missing(cell) or not str(cell).strip():
        return None
    try:
        return float(str(cell))
    except ValueError:
        return math.nan


LABELS_FILE = "labels.csv"  # beside the found pairs
# Its columns.
COLUMNS_SHOWN = ("columns1", "columns2")  # names and cells, besides the texts of a pair
LABELS = ("id1", "id2", "question1", "question2", "is_duplicate")  # then the score, and WEIGHT


@dataclass
class Review:
    """The state of a review.

    history: whether pairs are duplicates, by key, in the order of the labels; None: skipped,
      which no file keeps.
    """

    found: FoundPairs
    path: pathlib.Path  # of the file of labels, written whole with every change
    precision: float  # that a threshold is sought for
    history: dict[int, bool | None]

    def __post_init__(self) -> None:
        self.current = self._choose()  # the key of the pair that is asked; None when all were

    def stale(self) -> str:
        """Say so if the file of pairs was written again since the review began; else ""."""
        if _written(self.found.path) == self.found.written:
            return ""
        what = "was written again, so this review keeps no more labels"
        return f"{self.found.path} {what}; start it again; the labels so far are in {self.path}"

    def judge(self, key: int, is_duplicate: bool | None) -> bool:
        """Keep a label on the current pair, None to skip it; False where `key` is another.

        The label is on disk when this returns. OSError where it cannot be, and is not counted.
        """
        if key != self.current:
            return False
        self._change(self.history | {key: is_duplicate})
        self.current = self._choose()
        return True

    def undo(self) -> bool:
        """Take the last label or skip back and ask that pair again; False where there is none."""
        if not self.history:
            return False
        *before, last = self.history
        self._change({key: self.history[key] for key in before})
        self.current = last
        return True

    def estimate(self, precision: float | None = None) -> Estimate | None:
        """Return the threshold that the labels recommend, here or for another precision.

        None before the first label.
        """
        yes, no = self.counts()
        if not (yes + no).any():
            return None
        if not self.found.option:
            counts = int(yes.sum()), int(no.sum())
            return share_of_right(*counts, self.found.copies, len(self.found.pairs))
        return choose_threshold(self.found.strata, yes, no, precision or self.precision)

    def sweep(self) -> list[Estimate]:
        """Return what the labels say of the threshold that found the pairs, and of SWEPT above it.

        Without scores, of all pairs. Left out are thresholds without a label up to the next one.
        """
        found, (yes, no), swept = self.found, self.counts(), list[Estimate]()
        labels = _labels(self.history)
        scored = next(iter(found.pairs.values())).score is not None
        judged = {key: found.pairs[key].score or 0.0 for key in labels}
        values = SWEPT if found.option else (*_LOW, *SWEPT)
        bounds = [found.least, *(value for value in values if value > found.least), math.inf]
        for least, following in itertools.pairwise(bounds if scored else [-math.inf, math.inf]):
            count = int((found.values >= least).sum())
            if not any(least <= score < following for score in judged.values()):
                continue
            if found.option:
                stratum = int(np.abs(np.cumsum(found.strata.sizes) - count).argmin())
                at = estimate_at(found.strata, yes, no, stratum)
            else:
                right = [labels[key] for key, score in judged.items() if score >= least]
                at = share_of_right(sum(right), right.count(False), found.copies, count)
            swept.append(dataclasses.replace(at, threshold=least, pairs=count))
        return swept

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels of each stratum that pairs are duplicates, and that they are none."""
        counts = np.zeros((2, len(self.found.strata.sizes)), np.int64)
        for key, is_duplicate in _labels(self.history).items():
            counts[0 if is_duplicate else 1, self.found.stratum[key]] += 1
        return counts[0], counts[1]

    def _choose(self) -> int | None:
        yes, no = self.counts()
        waiting: dict[int, int] = {}
        for key, number in self.found.stratum.items():
            if key not in self.history:
                waiting.setdefault(number, key)
        ranked = rank_strata(self.found.strata, yes, no, self.precision).tolist()
        return next((waiting[number] for number in ranked if number in waiting), None)

    def _change(self, history: dict[int, bool | None]) -> None:
        """Take a history, once its labels are on disk."""
        if _labels(history) != _labels(self.history):
            self._write(_labels(history))
        self.history = history

    def _write(self, labels: dict[int, bool]) -> None:
        """Write all labels: what one stands for changes with the others of its stratum."""
        stratum, sizes = self.found.stratum, self.found.strata.sizes
        counts = collections.Counter(stratum[key] for key in labels)
        with write_atomically(self.path, "w") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow((*LABELS, SCORE if self.found.option else HIT_SCORE, WEIGHT))
            for key, is_duplicate in labels.items():
                pair, number = self.found.pairs[key], stratum[key]
                cells = (pair.id1, pair.id2, pair.question1, pair.question2)
                texts = (replace_surrogates(f"{cell}") for cell in cells)
                weight = f"{sizes[number] / counts[number]:.6g}"
                score = "" if pair.score is None else repr(pair.score)
                writer.writerow([*texts, int(is_duplicate), score, weight])


def _labels(history: dict[int, bool | None]) -> dict[int, bool]:
    return {key: label for key, label in history.items() if label is not None}


@contextlib.contextmanager
def open_review(
    pairs: str, labels: StrPath, *, precision: float, format: str = ""
) -> Iterator[Review]:
    """Begin a review of a file of pairs, or go on with the one of a file of labels.

    Raises:
      UserError: a file cannot be read, a label is on a pair that the file of pairs lacks or has
        with another score, or another review has the file of labels open.
    """
    path = pathlib.Path(labels)
    busy = f"{path}: another review is writing this file"
    with locked(path.with_name(f".{path.name}.lock"), busy=busy):
        found = read_found_pairs(pairs, format=format)
        history, others = _read_labels(path, found) if path.exists() else ({}, 0)
        if others:
            what = f"{path}: has a label on a pair that {pairs} lacks or scores otherwise"
            raise UserError(what, remedy="name another file with `labels`")
        yield Review(found, path, precision, history)


def sweep_labels(pairs: StrPath, labels: StrPath) -> list[Estimate]:
    """Return the sweep of found pairs by a file of labels on some of them.

    Labels on pairs with other scores do not count: they were not drawn from these at random.
    """
    found, path = read_found_pairs(str(pairs)), pathlib.Path(labels)
    return Review(found, path, 0.0, _read_labels(path, found)[0]).sweep()


def describe_review(review: Review) -> dict[str, Any]:
    """Return all that a page shows. Keys are strings, since JavaScript cuts 64 bits."""
    found = review.found
    yes, no = (int(counts.sum()) for counts in review.counts())
    shown = dict[str, Any]()
    if review.current is not None:
        pair = found.pairs[review.current]
        first, second = pair.question1, pair.question2
        shown = {"key": str(review.current), "id1": pair.id1, "id2": pair.id2}
        for name, others, row in zip(COLUMNS_SHOWN, found.columns, pair[:2], strict=True):
            cells = others.get(f"{row}", {}).items()
            shown[name] = [[column, shortened(f"{cell}", 100)] for column, cell in cells]
        shown |= {"first": mark_words(first, second), "second": mark_words(second, first)}
    return {
        "pair": shown or None,
        "yes": yes,
        "no": no,
        "skipped": len(review.history) - yes - no,
        "pairs": len(found.values),
        "precision": review.precision,
        "estimate": _described(found, review.estimate()),
        "balance": _described(found, review.estimate(BEST_F1)),
        "can_undo": bool(review.history),
        "file": str(review.path),
    }


def _described(found: FoundPairs, estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    threshold = threshold_of(found.values, estimate) if found.option else None
    return dataclasses.asdict(estimate) | {"option": found.option, "threshold": threshold}


def _read_labels(path: pathlib.Path, found: FoundPairs) -> tuple[dict[int, bool | None], int]:
    """Read labels by key, without ids by their texts.

    Also count those on pairs that were not found or have another score.
    """
    keys_of = collections.defaultdict[frozenset[str], list[int]](list)
    for key, pair in found.pairs.items():
        keys_of[frozenset((pair.question1, pair.question2))].append(key)

    def parse(_line: int, fields: Fields) -> tuple[list[int], bool, float]:
        row, _, score = parse_labeled(fields, weighted=True)
        ids = [fields.get(name) for name in LABELS[:2]]
        keys = keys_of[frozenset(row[2:4])] if None in ids else [pair_key(*ids)]
        return keys, row[4], score

    history, others = dict[int, bool | None](), 0
    rows = read_rows(str(path), list, format="csv")
    for keys, label, score in BadRows(str(path), skip=False, option="").good(rows, parse):
        if not history.keys().isdisjoint(keys):
            raise UserError(f"{path}: expected one label on a pair, got several", remedy="keep one")
        scores = {key: found.pairs[key].score for key in keys if key in found.pairs}
        same = [key for key, other in scores.items() if math.isnan(score) or score == other]
        history |= dict.fromkeys(same, label)
        others += 0 if same else 1
    return history, others
