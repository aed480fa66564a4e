"""From rows to pairs, groups and the rows that are kept, each phase in files of one folder."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from qpr_jax.duplicates.choice import Choice
from qpr_jax.duplicates.groups import DEFAULT, Linkage, Links, group_pairs
from qpr_jax.duplicates.row_groups import RowGroups, group_rows
from qpr_jax.duplicates.rows import Rows
from qpr_jax.duplicates.scoring import Scored, ScoredPairs, rerank_pairs
from qpr_jax.duplicates.vectors import Fill, encode_entries
from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.index.closest_pairs import find_closest
from qpr_jax.index.mining import Pairs
from qpr_jax.index.pair_search import FoundPairs, find_pairs
from qpr_jax.reranking.base import Rerank
from qpr_jax.reranking.light import LIGHT
from qpr_jax.reranking.second_stage import SecondStages

log = logging.getLogger("qpr_jax")

Compare = Literal["all", "across", "new"]
_LEAST = 0.05  # the lowest probability that a threshold of a precision can be, without a re-ranker
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
        for part in sorted_parts(self.pairs, self.count, self.settings.memory // _SORTED):
            yield self._across(part) if across else self._of_entries(part)

    def _of_entries(self, part: Scored) -> RowPairs:
        return RowPairs(self.rows.first[part.first], self.rows.first[part.second], *part[2:])

    def _across(self, part: Scored) -> RowPairs:
        """Each row of the table with the row that stands for the entry of the other."""
        rows = self.rows
        is_new = rows.first[part.first] < rows.table_rows
        new = np.where(is_new, part.first, part.second)
        old = np.where(is_new, part.second, part.first)
        members = np.argsort(rows.entries[: rows.table_rows], kind="stable")
        starts = np.searchsorted(rows.entries[members], np.stack([new, new + 1]))
        counts = starts[1] - starts[0]
        pair = np.repeat(np.arange(len(new)), counts)
        offsets = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
        own = members[starts[0][pair] + offsets]
        return RowPairs(own, rows.first[old[pair]], part.scores[pair], part.distances[pair])

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
        for start in range(0, len(some), 1 << 18):
            part = slice(start, start + (1 << 18))
            size = len(some[part])
            yield RowPairs(
                first[kept][part], some[part], np.full(size, score), np.zeros(size, np.float32)
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
    if rows.is_new is not None and not rows.is_new.any():  # nothing is compared
        vectors = np.zeros((0, encoder.dimension), np.float32)
    else:
        vectors = encode_entries(rows, encoder, folder, fill)
    found = _find(rows, vectors, limit, settings, folder / "pairs")
    raw = None
    if light and found is not None:
        log.info("re-ranking %s pairs", f"{found.count:,}")
        raw = rerank_pairs(
            rows, encoder, stages.models[LIGHT], found.parts, folder, settings.memory
        )
    parts = _no_parts if found is None else found.parts
    pairs = ScoredPairs(parts, rows.texts, stages.calibration, raw, choice.threshold)
    if choice.precision is not None:
        pairs = pairs.with_precision(choice.precision)
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
    if stages.choose(settings.rerank, "l2") != "light":
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
    """The largest distance of a pair that is looked at; below 0 where no pair can count."""
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
    rows: Rows, vectors: np.ndarray, limit: float, settings: Settings, folder: pathlib.Path
) -> FoundPairs | None:
    """The pairs of entries within a distance; None where there can be none."""
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
    if settings.choice.pairs is not None:
        return find_closest(vectors, int(settings.choice.pairs), folder, **how)  # type: ignore[arg-type]
    return find_pairs(vectors, limit, folder, **how)  # type: ignore[arg-type]


def _no_parts() -> Iterator[Pairs]:
    return iter(())


def _largest(pairs: ScoredPairs) -> float:
    """The largest distance of a pair."""
    return max((float(p.distances.max(initial=0)) for p in pairs.parts()), default=0.0)


def sorted_parts(pairs: ScoredPairs, count: int, most: int) -> Iterator[Scored]:
    """The pairs, strongest first, in parts of about `most`; they are read once for each part."""
    ranges = -(-count // max(1, most))
    if ranges <= 1:
        yield from _sorted(pairs, -np.inf, np.inf)
        return
    step = max(1, count >> 20)
    sample = np.concatenate([part.strengths[::step] for part in pairs.parts()])
    bounds = np.unique(np.quantile(sample, np.linspace(0, 1, 2 * ranges + 1)[1:-1]))[::-1]
    for low, high in zip([*bounds, -np.inf], [np.inf, *bounds], strict=True):
        yield from _sorted(pairs, low, high)


def _sorted(pairs: ScoredPairs, low: float, high: float) -> Iterator[Scored]:
    """The pairs with a strength from `low` to below `high`, strongest first, as one part."""
    parts = []
    for part in pairs.parts():
        by = part.strengths
        parts.append(part.some((by >= low) & (by < high)))
    if parts:
        joined = Scored(*map(np.concatenate, zip(*parts, strict=True)))
        yield joined.some(np.lexsort((joined.second, joined.first, -joined.strengths)))
