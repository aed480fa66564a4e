"""A review of found pairs: which pair comes next, the verdicts and their file, what they imply."""

from __future__ import annotations

import collections
import contextlib
import csv
import math
import pathlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.pairs import parse_label
from qpr_jax.data.tables import read_values
from qpr_jax.duplicates.found_pairs import FoundPair, FoundPairs, pair_key, read_found_pairs
from qpr_jax.duplicates.sampling import Estimate, choose_threshold, rank_strata
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, locked, read_object, write_atomically
from qpr_jax.text.tokenizer import replace_surrogates, split_at_words

# Columns of the file of verdicts.
VERDICTS = [*FoundPair._fields[:4], "is_duplicate", "score", "weight", "calibration"]


class Verdict(NamedTuple):
    """What a person said about a pair; None: skipped, which no file keeps."""

    key: int
    is_duplicate: bool | None


@dataclass
class Review:
    """The state of a review.

    Attributes:
      found: the pairs.
      path: of the file of verdicts, written whole with every change.
      precision: that a threshold is sought for.
      calibration: what names that of the scores; "" where it is not known.
      history: verdicts in the order in which they were given.
      current: the key of the pair that is asked; None when all were.
    """

    found: FoundPairs
    path: pathlib.Path
    precision: float
    calibration: str = ""
    history: list[Verdict] = field(default_factory=list)
    current: int | None = None

    def __post_init__(self) -> None:
        """Choose the first pair."""
        self.current = self._choose()

    def judge(self, key: int, is_duplicate: bool | None) -> bool:
        """Keep a verdict on the current pair, None to skip it; False where `key` is another.

        The verdict is on disk when this returns. OSError where it cannot be, and is not counted.
        """
        if key != self.current:
            return False
        self._change([*self.history, Verdict(key, is_duplicate)])
        self.current = self._choose()
        return True

    def undo(self) -> bool:
        """Take the last verdict or skip back and ask that pair again; False where there is none."""
        if not self.history:
            return False
        last = self.history[-1]
        self._change(self.history[:-1])
        self.current = last.key
        return True

    def estimate(self) -> Estimate | None:
        """The threshold that the verdicts imply; None before the first."""
        yes, no = self.counts()
        if not (yes + no).any():
            return None
        return choose_threshold(self.found.strata, yes, no, self.precision)

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Verdicts of each stratum that pairs are duplicates, and that they are none."""
        counts = np.zeros((2, len(self.found.strata.sizes)), np.int64)
        for key, is_duplicate in self.history:
            if is_duplicate is not None:
                counts[0 if is_duplicate else 1, self.found.stratum[key]] += 1
        return counts[0], counts[1]

    def _choose(self) -> int | None:
        done = {verdict.key for verdict in self.history}
        yes, no = self.counts()
        for number in rank_strata(self.found.strata, yes, no, self.precision).tolist():
            for key in self.found.choices[number]:
                if key not in done:
                    return key
        return None

    def _change(self, history: list[Verdict]) -> None:
        """Take a history, once its verdicts are on disk."""
        kept = [verdict for verdict in history if verdict.is_duplicate is not None]
        if kept != [verdict for verdict in self.history if verdict.is_duplicate is not None]:
            self._write(kept)
        self.history = history

    def _write(self, verdicts: list[Verdict]) -> None:
        """Write all verdicts: what one stands for changes with the others of its stratum."""
        stratum, sizes = self.found.stratum, self.found.strata.sizes
        given = collections.Counter(stratum[key] for key, _ in verdicts)
        with write_atomically(self.path, "w") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(VERDICTS)
            for key, is_duplicate in verdicts:
                pair, number = self.found.pairs[key], stratum[key]
                texts = map(replace_surrogates, pair[:4])
                weight = f"{sizes[number] / given[number]:.6g}"
                score = "" if pair.score is None else repr(pair.score)
                label = int(bool(is_duplicate))
                writer.writerow([*texts, label, score, weight, self.calibration])


def threshold_of(found: FoundPairs, estimate: Estimate) -> tuple[str, float]:
    """The option of `qpr duplicates` that accepts the pairs of an estimate, and its value.

    The value is the shortest decimal that accepts these pairs and no others.
    """
    of_score = found.measure == "score"
    last = float(found.values[estimate.pairs - 1])
    beyond = -1.0 if of_score else math.inf
    if estimate.pairs < len(found.values):
        beyond = float(found.values[estimate.pairs])
    rounded = (round(last, digits) for digits in range(1, 17))
    fitting = (r for r in rounded if beyond < r <= last or last <= r < beyond)
    return "threshold" if of_score else "max_distance", next(fitting, last)


@contextlib.contextmanager
def open_review(
    pairs: str, verdicts: StrPath, *, precision: float, format: str = ""
) -> Iterator[Review]:
    """Begin a review of a file of pairs, or go on with the one of a file of verdicts.

    Raises:
      UserError: a file cannot be read, a verdict is on a pair that the file of pairs lacks or has
        with another score, or another review has the file of verdicts open.
    """
    path = pathlib.Path(verdicts)
    other = "name another file with --verdicts"
    with locked(path.with_name(f".{path.name}.lock")) as held:
        if not held:
            raise UserError(f"{path}: another review is writing this file", remedy=other)
        rows = _read_verdicts(path) if path.exists() else []
        found = read_found_pairs(pairs, format=format)
        for key, _, score in rows:
            if key not in found.pairs or (found.pairs[key].score or 0) != score:
                what = f"{path}: has a verdict on a pair that {pairs} lacks or scores otherwise"
                raise UserError(what, remedy=other)
        history = [Verdict(key, is_duplicate) for key, is_duplicate, _ in rows]
        yield Review(found, path, precision, _calibration_of(pairs), history)


def describe_review(review: Review) -> dict[str, Any]:
    """All that a page shows, as JSON has it; keys are strings, since JavaScript cuts 64 bits."""
    found, estimate = review.found, review.estimate()
    yes, no = (int(counts.sum()) for counts in review.counts())
    shown: dict[str, Any] | None = None
    implied: dict[str, Any] | None = None
    if review.current is not None:
        pair = found.pairs[review.current]
        first, second = mark_differences(pair.question1, pair.question2)
        shown = {"key": str(review.current), "id1": pair.id1, "id2": pair.id2}
        shown |= {"first": first, "second": second}
    if estimate:
        option, value = threshold_of(found, estimate)
        implied = asdict(estimate) | {"option": option, "threshold": value}
    return {
        "pair": shown,
        "yes": yes,
        "no": no,
        "skipped": len(review.history) - yes - no,
        "pairs": len(found.values),
        "precision": review.precision,
        "estimate": implied,
        "can_undo": bool(review.history),
        "file": str(review.path),
    }


def mark_differences(first: str, second: str) -> tuple[list[tuple[str, bool]], ...]:
    """Both texts in pieces, and whether a piece is a word that the other text has less often."""
    pieces = [split_at_words(text) for text in (first, second)]
    counts = [collections.Counter(word for _, word in each if word) for each in pieces]
    marked: list[list[tuple[str, bool]]] = []
    for each, own, other in zip(pieces, counts, counts[::-1], strict=True):
        more = own - other
        marked.append([(piece, bool(word) and word in more) for piece, word in each])
    return tuple(marked)


def _calibration_of(pairs: str) -> str:
    """What names the calibration of the scores, in the info.json that `qpr duplicates` wrote."""
    path = pathlib.Path(pairs)
    info = read_object(path.with_name("info.json")) if path.stem == "pairs" else {}
    name = info.get("calibration")
    return name if isinstance(name, str) else ""


def _read_verdicts(path: pathlib.Path) -> list[tuple[int, bool, float]]:
    """The key, the verdict and the score, 0 for none, of each row of a file of verdicts."""

    def parse(id1: object, id2: object, label: object, score: object) -> Any:
        verdict = parse_label(label)
        try:
            number = float(str(score)) if score else 0.0
        except ValueError:
            return None
        return None if verdict is None else (pair_key(id1, id2), verdict, number)

    columns, expected = ("id1", "id2", "is_duplicate", "score"), "two ids, 0 or 1, and a score"
    found = read_values(str(path), columns, parse, expected=expected, format="csv")
    rows = [row for _, row in found]
    if len({key for key, *_ in rows}) < len(rows):
        raise UserError(f"{path}: expected one verdict on a pair, got several", remedy="keep one")
    return rows
