"""The pairs that were found and how probable each is, and those of them that count."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np

from qpr_jax.duplicates.rows import Rows
from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.files import read_object, write_json
from qpr_jax.index.closest_pairs import LastPair
from qpr_jax.index.mining import Pairs
from qpr_jax.index.statistics import Statistics
from qpr_jax.reranking.light import LightModel
from qpr_jax.reranking.pair_calibration import PairCalibration, light_identity
from qpr_jax.reranking.pairs import PairReranker

_BINS = 100_000  # of probabilities, to find a threshold
_NEAR = 1e-9  # how much of a strength the distance is: it orders pairs of equal probability
_SCORES = "scores.json"
_CHUNK = 65_536  # texts in memory at once


class Scored(NamedTuple):
    """Pairs of entries.

    first, second: int64 [P]. scores: float64 [P], probabilities, NaN without a calibration.
    distances: float32 [P], squared.
    """

    first: np.ndarray
    second: np.ndarray
    scores: np.ndarray
    distances: np.ndarray

    def some(self, which: np.ndarray | slice) -> Scored:
        """Those of a mask, of positions or of a slice."""
        return Scored(*(values[which] for values in self))

    @property
    def strengths(self) -> np.ndarray:
        """By what pairs are ordered, float64 [P]: probability, then distance."""
        return strengths(self.scores, self.distances)


def strengths(scores: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """See `Scored.strengths`."""
    distances = distances.astype(np.float64)
    near = _NEAR * distances / (1 + distances)
    return np.where(np.isnan(scores), -distances, scores - near)


@dataclass(frozen=True)
class ScoredPairs:
    """The pairs of a search with their probabilities, read a part at a time.

    Attributes:
      found: returns the pairs of entries, in parts, always the same.
      spellings: int64 [E], equal for spellings of one text, whose pairs have probability 1.
      calibration: None: without probabilities.
      raw: float64 [P], scores of the re-ranker; None: probabilities of distances.
      threshold: the least probability of a pair that counts; None: all do.
      last: the last pair that counts; None: all do.
    """

    found: Callable[[], Iterator[Pairs]]
    spellings: np.ndarray
    calibration: PairCalibration | None = None
    raw: np.ndarray | None = None
    threshold: float | None = None
    last: LastPair | None = None

    def parts(self) -> Iterator[Scored]:
        """Those that count."""
        for part in self._all():
            yield part if self.threshold is None else part.some(part.scores >= self.threshold)

    def _all(self) -> Iterator[Scored]:
        start = 0
        for first, second, distances in self.found():
            stop = start + len(first)
            if self.calibration is None:
                scores = np.full(len(first), np.nan)
            elif self.raw is not None:
                scores = self.calibration.light_probabilities(self.raw[start:stop])
            else:
                scores = self.calibration.probabilities(distances)
            if self.calibration is not None:
                scores = np.where(self.spellings[first] == self.spellings[second], 1.0, scores)
            part = Scored(first, second, scores, distances)
            if self.last is not None:
                part = part.some(self.last.counts(first, second, distances))
            yield part
            start = stop

    def _without_spellings(self, part: Scored) -> Scored:
        return part.some(self.spellings[part.first] != self.spellings[part.second])

    def count(self) -> int:
        """How many count."""
        return sum(len(part.first) for part in self.parts())

    def with_precision(self, precision: float) -> ScoredPairs:
        """With the lowest threshold, of _BINS, at which the mean probability is `precision`.

        Spellings of one text do not count in it. The threshold is 1 where there are no other pairs.
        UserError where none of them has the precision.
        """
        counts, sums = np.zeros(_BINS + 1, np.int64), np.zeros(_BINS + 1)
        for part in map(self._without_spellings, self._all()):
            bins = (part.scores * _BINS).astype(np.int64)
            counts += np.bincount(bins, minlength=_BINS + 1)
            sums += np.bincount(bins, part.scores, minlength=_BINS + 1)
        counts, sums = counts[::-1].cumsum()[::-1], sums[::-1].cumsum()[::-1]
        good = np.flatnonzero((counts > 0) & (sums >= precision * counts))
        if counts[0] and not len(good):
            means = sums[counts > 0] / counts[counts > 0]
            best = int(means.argmax())
            raise UserError(
                f"expected pairs with a mean probability of {precision:g}, got at most "
                f"{means[best]:.4f}, at a threshold of {np.flatnonzero(counts)[best] / _BINS:g}",
                setting="precision",
                remedy="lower {precision}",
            )
        return dataclasses.replace(self, threshold=float(good[0] / _BINS) if len(good) else 1.0)

    def mean_probability(self) -> float | None:
        """Of the pairs that count: the precision that the calibration expects; None if unknown.

        Spellings of one text do not count in it.
        """
        total, count = 0.0, 0
        for part in map(self._without_spellings, self.parts()):
            total, count = total + float(part.scores.sum()), count + len(part.first)
        return total / count if count and self.calibration is not None else None


def rerank_pairs(
    rows: Rows,
    encoder: Encoder,
    model: LightModel,
    found: Callable[[], Iterator[Pairs]],
    folder: pathlib.Path,
    memory: int,
) -> np.ndarray:
    """The raw scores of all pairs by the light re-ranker, float64 [P]; kept in `folder`."""
    made_by = f"{rows.identity} {encoder.identity} {light_identity(model)}"
    digest = hashlib.sha256(made_by.encode())
    if rows.is_new is not None:
        digest.update(np.packbits(rows.is_new).data)
    for part in found():
        for values in part:
            digest.update(np.ascontiguousarray(values).data)
    identity, count = digest.hexdigest(), sum(len(part.first) for part in found())
    path = folder / "pair_scores.bin"
    is_whole = path.is_file() and path.stat().st_size == 8 * count
    if is_whole and read_object(folder / _SCORES).get("identity") == identity:
        return np.memmap(path, np.float64, "r", shape=(count,)) if count else np.zeros(0)
    (folder / _SCORES).unlink(missing_ok=True)
    texts = _texts(rows, memory)
    statistics = Statistics.build(iter(texts))
    reranker = PairReranker(model, encoder, statistics, texts, complete=rows.is_new)
    scores = reranker.score_parts(found, folder, memory)
    write_json(folder / _SCORES, {"identity": identity})
    return scores


def _texts(rows: Rows, memory: int) -> Sequence[str]:
    """The texts of all entries: a list where that fits, else read when they are asked for."""
    size = sum(part.record_bytes for part in rows.parts) + 60 * len(rows.first)
    if size > memory:
        return _StoredTexts(rows)
    entries = np.arange(len(rows.first))
    starts = range(0, len(entries), _CHUNK)
    return [text for at in starts for text in rows.texts_of(entries[at : at + _CHUNK])]


class _StoredTexts(Sequence[str]):
    """The texts of entries, on disk."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows.first)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        chosen = np.arange(len(self))[index] if isinstance(index, slice) else np.array([index])
        texts = self._rows.texts_of(chosen)
        return texts if isinstance(index, slice) else texts[0]
