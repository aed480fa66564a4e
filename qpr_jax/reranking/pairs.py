"""Scores by the light re-ranker of pairs found among all questions.

The re-ranker scores hits of a query. Here each text is a query, and its hits are the texts that it
was found in pairs with, nearest first. The score of a pair is the mean of its two directions, so
it is symmetric; where one of its texts was not compared with all others, it is that of the other.
Rows stand for texts in a canonical order, such as that of their texts: then the scores depend on
no order of the questions.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.files import name_in_errors
from qpr_jax.index.pair_files import Pairs
from qpr_jax.index.statistics import Statistics
from qpr_jax.reranking.base import owners_of, starts_of
from qpr_jax.reranking.features import FeatureExtractor
from qpr_jax.reranking.light import LightModel
from qpr_jax.reranking.scorer import score_features

_HITS = 1 << 18  # whose features are computed at once
# Bytes that a hit takes while those of a range of texts are sorted.
_BYTES_PER_HIT = 80
_RECORD = np.dtype([("owner", "<i4"), ("other", "<i4"), ("distance", "<f4"), ("pair", "<i8")])

# Raw scores, float64 [m], of features, float32 [m, f], of hits of the pairs of these numbers.
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


class _Hits(NamedTuple):
    """Hits of n texts, nearest first; those of a text are contiguous.

    owners: int64 [n], rows of the texts. starts: int64 [n + 1]. others, pairs: int64 [m], rows of
    the hits, and the numbers of their pairs. distances: float32 [m].
    """

    owners: np.ndarray
    starts: np.ndarray
    others: np.ndarray
    pairs: np.ndarray
    distances: np.ndarray


class PairReranker:
    """Scores pairs of texts by the light re-ranker."""

    def __init__(
        self,
        model: LightModel,
        encoder: Encoder,
        statistics: Statistics,
        texts: Sequence[str],
        *,
        score: Score | None = None,
        complete: np.ndarray | None = None,
    ) -> None:
        """Make the features of texts.

        Args:
          model: the re-ranker, without a cross-encoder.
          encoder: the encoder of its distances.
          statistics: the document frequencies of the texts.
          texts: N texts in canonical order.
          score: other raw scores than those of the model, as of a cross-validation.
          complete: bool [N], texts of which all pairs are found; None: all. A pair has one or two.
            The list of another text lacks hits, so its direction does not count.
        """
        self._texts, self._candidates = texts, model.candidates
        self._complete = np.full(len(texts), True) if complete is None else complete
        self._features = FeatureExtractor(encoder, statistics, model.word_weights)
        self._score = score or (lambda features, _: score_features(model.scorer, features))

    def score(self, pairs: Pairs, needed: np.ndarray | None = None) -> np.ndarray:
        """Compute the raw scores of all pairs within the reach of a calibration, float64 [P].

        A pair's score depends on the other pairs of its two texts: give all of them. Takes 80 bytes
        a pair, twice; `score_parts` bounds the memory.

        needed: bool [P], pairs to score; the others get 0 and only take part in the lists.
        """
        records = _records(pairs, 0)
        scores = np.zeros(len(pairs.first))
        self._add(_sort(records), scores, needed)
        return scores

    def score_parts(
        self, parts: Callable[[], Iterable[Pairs]], folder: pathlib.Path, memory: int
    ) -> np.ndarray:
        """Compute the same scores of more pairs than fit in memory, in the order of the parts.

        Args:
          parts: returns the pairs, a part at a time; called twice, and must give the same.
          folder: gets the scores, `pair_scores.bin`, and temporary files.
          memory: bytes to use, at least; a text with more pairs than that takes what it needs.

        Returns:
          float64 [P], mapped from the file.
        """
        counts, total = np.zeros(len(self._texts), np.int64), 0
        for part in parts():
            for rows in part[:2]:
                counts += np.bincount(rows, minlength=len(counts))
            total += len(part.first)
        ends = _cut(counts, max(1, memory // _BYTES_PER_HIT))
        folder.mkdir(parents=True, exist_ok=True)
        spools = [folder / f"pair_hits-{i}.bin" for i in range(len(ends))]
        for path in spools:
            path.write_bytes(b"")
        start = 0
        for part in parts():
            _spool(_records(part, start), ends, spools)
            start += len(part.first)
        path = folder / "pair_scores.bin"
        path.write_bytes(b"")
        if not total:
            return np.zeros(0)
        scores = np.memmap(path, np.float64, "w+", shape=(total,))
        for spool in spools:
            self._add(_sort(np.fromfile(spool, _RECORD)), scores, None)
            spool.unlink()
        scores.flush()
        return scores

    def _add(self, hits: _Hits, scores: np.ndarray, needed: np.ndarray | None) -> None:
        """Add the raw score of each hit, or half of it where two count, to that of its pair."""
        lists = split_lists(np.diff(hits.starts), self._candidates)
        lists = lists[self._complete[hits.owners[lists[:, 0]]]]
        if needed is not None:
            lists = lists[_any_needed(hits, lists, needed)]
        block = np.cumsum(lists[:, 2] + lists[:, 3]) // _HITS
        for own in np.split(lists, np.flatnonzero(np.diff(block)) + 1):
            rows, is_own, starts = _rows_of(own, hits.starts)
            if needed is not None:
                is_own &= needed[hits.pairs[rows]]
            texts = self._texts
            features = self._features.compute(
                [texts[i] for i in hits.owners[own[:, 0]].tolist()],
                [texts[i] for i in hits.others[rows].tolist()],
                hits.distances[rows],
                starts,
            )
            found = hits.pairs[rows[is_own]]
            directions = 1 + self._complete[hits.others[rows[is_own]]]
            # Both directions of a pair may be among them.
            np.add.at(scores, found, self._score(features[is_own], found) / directions)


def score_pairs(
    model: LightModel,
    encoder: Encoder,
    statistics: Statistics,
    texts: Sequence[str],
    pairs: Pairs,
) -> np.ndarray:
    """Compute raw scores float64 [P] of all pairs found among `texts`; see `PairReranker`."""
    return PairReranker(model, encoder, statistics, texts).score(pairs)


def split_lists(counts: np.ndarray, most: int) -> np.ndarray:
    """Split lists of hits, nearest first, into lists of at most `most`.

    The first has the nearest. Each further one repeats the nearest half of `most`, which ranks and
    gaps are relative to, before hits of its own.

    Returns:
      int64 [l, 4], of each list: its text, the place of its first own hit among all of the text,
      how many hits it repeats, and how many are its own.
    """
    repeated = most // 2
    step = most - repeated
    further = np.maximum(0, -(-(counts - most) // step))
    owner = np.repeat(np.arange(len(counts)), 1 + further)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(1 + further) - 1 - further, 1 + further)
    first = np.where(nth == 0, 0, most + (nth - 1) * step)
    size = np.minimum(counts[owner] - first, np.where(nth == 0, most, step))
    return np.stack([owner, first, np.where(nth == 0, 0, repeated), size], axis=1)


def _rows_of(lists: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the hits of lists, int64 [m], which are no repeated ones, and where each list begins.

    lists: as of `split_lists`. starts: of the hits of each text.
    """
    text, first, repeated, own = lists.T
    bounds = starts_of(repeated + own)
    owners = owners_of(bounds)
    places = np.arange(bounds[-1]) - bounds[owners]
    is_own = places >= repeated[owners]
    places += np.where(is_own, first[owners] - repeated[owners], 0)
    return starts[text[owners]] + places, is_own, bounds


def _any_needed(hits: _Hits, lists: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """Return which lists have a hit of their own that is needed, bool [l]."""
    before = starts_of(needed[hits.pairs])
    first = hits.starts[lists[:, 0]] + lists[:, 1]
    return before[first + lists[:, 3]] > before[first]


def _records(pairs: Pairs, start: int) -> np.ndarray:
    """Return the hits of both texts of pairs, _RECORD [2 P]; pairs are numbered from `start`."""
    count = len(pairs.first)
    records = np.empty(2 * count, _RECORD)
    records["owner"] = np.concatenate([pairs.first, pairs.second])
    records["other"] = np.concatenate([pairs.second, pairs.first])
    records["distance"] = np.tile(pairs.distances, 2)
    records["pair"] = np.tile(np.arange(start, start + count), 2)
    return records


def _sort(records: np.ndarray) -> _Hits:
    """Sort hits by text, then by distance; of equal ones, the first text first."""
    order = np.lexsort((records["other"], records["distance"], records["owner"]))
    owners, counts = np.unique(records["owner"], return_counts=True)
    columns = (records[name][order] for name in ("other", "pair", "distance"))
    return _Hits(owners, starts_of(counts), *columns)


def _cut(counts: np.ndarray, most: int) -> np.ndarray:
    """Cut texts into ranges with at most `most` hits, or of one text; return the ends, int64 [r].

    counts: int64 [N], the hits of each text.
    """
    ends, total = [], np.cumsum(counts)
    start = 0
    while start < len(counts):
        before = total[start - 1] if start else 0
        start = max(start + 1, int(np.searchsorted(total, before + most, "right")))
        ends.append(start)
    return np.array(ends, np.int64)


def _spool(records: np.ndarray, ends: np.ndarray, spools: Sequence[pathlib.Path]) -> None:
    """Append hits to the file of the range of their text."""
    ranges = np.searchsorted(ends, records["owner"], "right")
    order = np.argsort(ranges, kind="stable")
    bounds = np.searchsorted(ranges[order], np.arange(len(ends) + 1))
    for i in np.flatnonzero(np.diff(bounds)).tolist():
        with name_in_errors(spools[i]), spools[i].open("ab") as file:
            records[order[bounds[i] : bounds[i + 1]]].tofile(file)
