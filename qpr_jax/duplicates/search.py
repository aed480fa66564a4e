"""From rows to pairs, groups and the rows that are kept, each phase in files of one folder."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpr_jax.duplicates.choice import Choice
from qpr_jax.duplicates.groups import DEFAULT, Linkage, Links, group_pairs
from qpr_jax.duplicates.row_groups import RowGroups, group_rows
from qpr_jax.duplicates.rows import Rows
from qpr_jax.duplicates.scoring import Scored, ScoredPairs, rerank_pairs
from qpr_jax.duplicates.vectors import Fill, encode_entries
from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.index.closest_pairs import LastPair, find_closest, last_pair
from qpr_jax.index.pair_files import Pairs
from qpr_jax.index.pair_search import FoundPairs, find_pairs
from qpr_jax.index.pair_tasks import Compare
from qpr_jax.reranking.base import Rerank
from qpr_jax.reranking.light import LIGHT
from qpr_jax.reranking.second_stage import SecondStages

log = logging.getLogger("qpr_jax")

_LEAST = 0.05  # the lowest probability that a threshold of a precision can be, without a re-ranker
_ROWS = 1 << 18  # pairs of rows that are made at once
_SAMPLE = 1 << 17  # pairs of which quantiles are taken
_SORTED = 150  # bytes of a pair while it is sorted


class RowPairs(NamedTuple):
    """Pairs of rows int64 [P] each; `scores` and `distances` as of `Scored`."""

    first: np.ndarray
    second: np.ndarray
    scores: np.ndarray
    distances: np.ndarray


@dataclass(frozen=True)
class Settings:
    """What is searched for; see `find_duplicates`.

    compare: "all" pairs of rows, those "across" the table and another, or those with a "new" row.
    """

    choice: Choice
    linkage: Linkage = DEFAULT
    keep: str = "first"
    rerank: Rerank = None
    memory: int = 1 << 30
    compare: Compare = "all"


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
      rows: and their entries.
      pairs: of entries.
      groups: of rows.
      exact: whether all pairs were compared.
      missed: the estimated share of the pairs that were missed.
      max_distance: the largest squared distance of a pair that was looked at.
      precision: the mean probability of the pairs; None without a calibration.
      count: how many pairs of entries there are.
    """

    rows: Rows
    settings: Settings
    pairs: ScoredPairs
    groups: RowGroups
    exact: bool
    missed: float
    max_distance: float
    precision: float | None
    count: int

    def row_pairs(self) -> Iterator[RowPairs]:
        """All pairs of rows, nearest first; before them the copies of one text.

        Of two entries the rows that stand for them are a pair, and of the rows of one text each
        with the first. Across two tables each row of the one is paired.
        """
        across = self.settings.compare == "across"
        if not across:
            yield from self._copies()
        own = self.rows.entries[: self.rows.table_rows]
        members = np.argsort(own, kind="stable") if across else own[:0]
        for part in sorted_parts(self.pairs, self.count, self.settings.memory // _SORTED):
            if across:
                yield from self._across(part, members, own[members])
            else:
                ends = self.rows.first[part.first], self.rows.first[part.second]
                yield RowPairs(*ends, *part[2:])

    def _across(self, part: Scored, members: np.ndarray, entries: np.ndarray) -> Iterator[RowPairs]:
        """Each row of the table with the row that stands for the entry of the other.

        members: int64 [T], the rows of the table by their `entries` int64 [T].
        """
        first = self.rows.first
        is_new = first[part.first] < self.rows.table_rows
        new = np.where(is_new, part.first, part.second)
        old = np.where(is_new, part.second, part.first)
        starts = np.searchsorted(entries, new)
        ends = np.cumsum(np.searchsorted(entries, new, "right") - starts)
        for start in range(0, int(ends[-1]) if len(ends) else 0, _ROWS):
            places = np.arange(start, min(start + _ROWS, ends[-1]))
            pair = np.searchsorted(ends, places, "right")
            own = members[starts[pair] + places - np.append(0, ends)[pair]]
            yield RowPairs(own, first[old[pair]], part.scores[pair], part.distances[pair])

    def _copies(self) -> Iterator[RowPairs]:
        rows = self.rows
        copied = (rows.entries >= 0) & (rows.copies > 1)[rows.entries]
        copies = np.flatnonzero(copied)
        first = rows.first[rows.entries[copies]]
        kept = first != copies
        if rows.is_new is not None:
            kept &= np.minimum(first, copies) < rows.table_rows
        score = np.nan if self.pairs.calibration is None else 1.0
        some = copies[kept]
        for start in range(0, len(some), _ROWS):
            part = slice(start, start + _ROWS)
            size = len(some[part])
            yield RowPairs(
                first[kept][part], some[part], np.full(size, score), np.zeros(size, np.float32)
            )

    @property
    def listed(self) -> int:
        """How many pairs of rows there are, without those of copies."""
        if self.settings.compare != "across":
            return self.count
        of_table = np.where(self.rows.first < self.rows.table_rows, self.rows.copies, 0)
        return sum(
            int((of_table[part.first] + of_table[part.second]).sum()) for part in self.pairs.parts()
        )

    @property
    def copies(self) -> int:
        """How many pairs of copies there are."""
        if self.settings.compare == "across":
            return 0
        return sum(len(part.first) for part in self._copies())


def search_duplicates(
    rows: Rows,
    encoder: Encoder,
    stages: SecondStages,
    settings: Settings,
    folder: pathlib.Path,
    fill: Fill | None = None,
) -> Found:
    """Find the pairs of rows that count as duplicates, and their groups.

    folder: what a run that was killed left there is used, whatever the phase.
    fill: as of `encode_entries`.
    """
    choice = settings.choice
    light = _uses_light(stages, settings)
    limit = distance_limit(stages, settings)
    reach = stages.require_calibration().reach if light else -1.0
    if rows.is_new is not None and not rows.is_new.any():  # nothing is compared
        limit, reach, vectors = -1.0, -1.0, np.zeros((0, encoder.dimension), np.float32)
    else:
        vectors = encode_entries(rows, encoder, folder, fill)
    found = _find(rows, vectors, limit, reach, settings, folder)
    raw, last = None, None
    if light and found is not None:
        log.info("re-ranking %s pairs", f"{found.count:,}")
        raw = rerank_pairs(
            rows, encoder, stages.models[LIGHT], found.parts, folder, settings.memory
        )
        last = _last_of(found, choice)
    parts = found.parts if found is not None else lambda: iter([_equal_texts(rows)])
    pairs = ScoredPairs(parts, rows.spellings, stages.calibration, raw, choice.threshold, last)
    if choice.precision is not None:
        pairs = _with_precision(pairs, choice.precision, settings.compare)
    groups = group_pairs(
        len(rows.first),
        lambda: (Links(p.first, p.second, p.strengths) for p in pairs.parts()),
        settings.linkage,
        memory=settings.memory,
    )
    return Found(
        rows=rows,
        settings=settings,
        pairs=pairs,
        groups=group_rows(
            rows, groups, vectors, settings.keep, copies=settings.compare != "across"
        ),
        exact=found is None or found.exact,
        missed=0.0 if found is None else found.missed,
        max_distance=_largest(pairs) if choice.pairs is not None else max(0.0, limit),
        precision=pairs.mean_probability(),
        count=pairs.count(),
    )


def _uses_light(stages: SecondStages, settings: Settings) -> bool:
    """Whether the light re-ranker gives the probabilities; UserError where it should and cannot."""
    calibration = stages.calibration
    if settings.rerank is False:
        return False
    if settings.rerank == "cross_encoder":
        raise UserError("expected False or 'light', got 'cross_encoder'", setting="rerank")
    if stages.choose(settings.rerank, None) != "light":
        return False
    calibrated = calibration is not None and calibration.light is not None
    if settings.rerank == "light" and not calibrated:
        raise UserError(
            "expected a run whose calibration is of its re-ranker, too, got one without",
            setting="rerank",
            remedy="leave {rerank} out, or train the run again",
        )
    return calibrated and (settings.choice.by_probability or settings.rerank == "light")


def distance_limit(stages: SecondStages, settings: Settings) -> float:
    """The largest distance of a pair that can count; below 0 where no pair can."""
    choice = settings.choice
    if choice.max_distance is not None:
        return choice.max_distance
    if choice.pairs is not None:
        return float("inf")
    calibration = stages.require_calibration()
    if _uses_light(stages, settings):
        return calibration.reach
    least = _LEAST if choice.threshold is None else choice.threshold
    if least > calibration.distance[1, -1]:
        return -1.0
    return min(calibration.reach, calibration.distance_at(least))


def _find(
    rows: Rows,
    vectors: np.ndarray,
    limit: float,
    reach: float,
    settings: Settings,
    folder: pathlib.Path,
) -> FoundPairs | None:
    """The pairs of entries within a distance, at least `reach`; None where there can be none."""
    if limit < 0 or len(vectors) < 2:
        return None
    is_new = None if settings.compare == "all" else rows.is_new
    if is_new is None and settings.compare == "across":
        return None  # the other table has no rows
    how = {
        "memory": settings.memory,
        "blocks": rows.blocks,
        "is_new": is_new,
        "compare": "all" if is_new is None else settings.compare,
    }
    count = settings.choice.pairs
    if count is None:
        return find_pairs(vectors, max(limit, reach), folder / "pairs", **how)  # type: ignore[arg-type]
    if reach >= 0:
        found = find_pairs(vectors, reach, folder / "pairs", **how)  # type: ignore[arg-type]
        if found.count >= count:
            return found
    return find_closest(vectors, int(count), folder / "closest", **how)  # type: ignore[arg-type]


def _last_of(found: FoundPairs, choice: Choice) -> LastPair | None:
    """The last pair that counts where the re-ranker also got further ones, as hits of texts."""
    if choice.max_distance is not None:
        return LastPair(choice.max_distance)
    if choice.pairs is None or found.count <= choice.pairs:
        return None
    return last_pair(found, int(choice.pairs))


def _with_precision(pairs: ScoredPairs, precision: float, compare: Compare) -> ScoredPairs:
    """As of `ScoredPairs`; new rows may well have no duplicates, so of these there are no pairs."""
    try:
        return pairs.with_precision(precision)
    except UserError as error:
        if compare == "all":
            raise
        log.warning("no pairs: %s", error)
        return dataclasses.replace(pairs, threshold=1.0)


def _equal_texts(rows: Rows) -> Pairs:
    """The pairs of entries of one text, which two tables have; there are no others of one text."""
    first = np.flatnonzero((rows.keys[1:] == rows.keys[:-1]).all(axis=1))
    return Pairs(first, first + 1, np.zeros(len(first), np.float32))


def _largest(pairs: ScoredPairs) -> float:
    """The largest distance of a pair."""
    return max((float(p.distances.max(initial=0)) for p in pairs.parts()), default=0.0)


def sorted_parts(pairs: ScoredPairs, count: int, most: int) -> Iterator[Scored]:
    """The pairs, strongest first, in parts of about `most`; they are read once for each part."""
    ranges = -(-count // max(1, most))
    step = max(1, count // max(_SAMPLE, 64 * ranges))
    bounds: list[Scored | None] = [None]
    if ranges > 1:
        sample = _strongest_first([part.some(slice(None, None, step)) for part in pairs.parts()])
        places = np.linspace(0, len(sample.first), 2 * ranges + 1).astype(np.int64)[1:-1]
        bounds += [sample.some(slice(at, at + 1)) for at in np.unique(places)]
    for first, end in zip(bounds, [*bounds[1:], None], strict=True):
        chosen = []
        for part in pairs.parts():
            inside = np.full(len(part.first), True) if end is None else _come_before(part, end)
            chosen.append(
                part.some(inside if first is None else inside & ~_come_before(part, first))
            )
        if chosen:
            yield _strongest_first(chosen)


def _come_before(pairs: Scored, one: Scored) -> np.ndarray:
    """Which pairs come before `one`, bool [P]: by strength, of equal ones by their entries."""
    by, other = pairs.strengths, one.strengths
    earlier = (pairs.first == one.first) & (pairs.second < one.second)
    return (by > other) | (by == other) & ((pairs.first < one.first) | earlier)


def _strongest_first(parts: list[Scored]) -> Scored:
    """The pairs of all parts, strongest first."""
    joined = Scored(*map(np.concatenate, zip(*parts, strict=True)))
    return joined.some(np.lexsort((joined.second, joined.first, -joined.strengths)))
