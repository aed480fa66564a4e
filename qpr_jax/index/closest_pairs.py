"""The closest pairs of vectors: all pairs within a distance that is guessed from a sample."""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from qpr_jax.files import StrPath
from qpr_jax.index.pair_codes import check_finite
from qpr_jax.index.pair_files import PairFolder, digest_of, join_pairs, sort_pairs
from qpr_jax.index.pair_search import FoundPairs, check_vectors, find_pairs
from qpr_jax.index.pair_tasks import Compare

MORE = 1.5  # pairs that a guess aims at, for each that is asked for
_SAMPLE, _OTHERS = 512, 65_536  # vectors that are compared to guess a distance
_TILE = 4096
_SPARE = 4  # pairs of the sample that a guess allows for, since a few come by chance
_PART = 1 << 20  # pairs of the last distance that are in memory, above those asked for

_log = logging.getLogger("qpr_jax")


def find_closest(
    vectors: np.ndarray,
    count: int,
    folder: StrPath,
    *,
    memory: int,
    blocks: np.ndarray | None = None,
    is_new: np.ndarray | None = None,
    compare: Compare = "all",
    exact: bool | None = None,
    seed: int = 0,
    log: Callable[[str], object] = _log.info,
) -> FoundPairs:
    """Find the `count` closest pairs; all where there are fewer.

    Of equal distances, those of the first rows. Arguments and errors are those of `find_pairs`.
    Until it ends, the folder has pairs that are somewhat further apart, too: half as many more.
    """
    vectors = check_vectors(vectors)
    settings = {"count": count, "compare": compare, "exact": exact, "seed": seed}
    spool = PairFolder(folder, digest_of([vectors, blocks, is_new], settings))
    if facts := spool.found():
        return FoundPairs.of(spool, facts)
    check_finite(vectors)
    sampled, aim = sample_distances(vectors, seed=seed), MORE * count
    for number in itertools.count():
        distance = sampled.distance_of(aim)
        found = find_pairs(
            vectors, distance, spool.path / f"within-{number}", memory=memory, blocks=blocks,
            is_new=is_new, compare=compare, exact=exact, seed=seed, log=log,
        )  # fmt: skip
        if found.count >= count or distance == np.inf:
            break
        log(f"{found.count:,} pairs up to a distance of {distance:g}; looking further")
        aim = further(aim, count, found.count)
    spool.restart()
    last = last_pair(found, count) if found.count > count else LastPair(np.inf)
    for part in found.parts():
        spool.add(part.where(last.counts(*part)))
    facts = spool.finish({**found.facts, "count": min(count, found.count)})
    for done in range(number + 1):
        shutil.rmtree(spool.path / f"within-{done}")
    return FoundPairs.of(spool, facts)


class LastPair(NamedTuple):
    """The last pair that counts, by squared distance, then by its rows."""

    distance: float
    first: float = np.inf
    second: float = np.inf

    def counts(self, first: np.ndarray, second: np.ndarray, distances: np.ndarray) -> np.ndarray:
        """Which pairs count, bool [P]; arguments as of `Pairs`."""
        before = (first < self.first) | ((first == self.first) & (second <= self.second))
        return (distances < self.distance) | ((distances == self.distance) & before)


class SampledDistances(NamedTuple):
    """How many pairs of a sample have which distance.

    counts: int64 [65536], by the upper half of the bits of a float32, which order as numbers do.
    every: all pairs of the vectors.
    """

    counts: np.ndarray
    every: int

    def distance_of(self, count: float) -> float:
        """About the distance within which `count` of all pairs are; infinity from all on."""
        place = count / max(self.every, 1) * self.counts.sum() + _SPARE
        if count >= self.every or place >= self.counts.sum():
            return float("inf")
        last = int(np.searchsorted(np.cumsum(self.counts), place))
        return float(np.array((last + 1) << 16, np.uint32).view(np.float32))


def sample_distances(vectors: np.ndarray, *, seed: int = 0) -> SampledDistances:
    """Compare some of float32 [N, d] with some others."""
    number = len(vectors)
    drawn = np.random.default_rng(seed).permutation(number)
    rows, others = drawn[: number // 2][:_SAMPLE], np.sort(drawn[number // 2 :][:_OTHERS])
    counts = np.zeros(1 << 16, np.int64)
    some = np.asarray(vectors[np.sort(rows)])
    center = some.mean(axis=0) if len(some) else np.float32(0)
    some = some - center
    squares = np.einsum("nd,nd->n", some, some)
    for start in range(0, len(others), _TILE):
        part = np.asarray(vectors[others[start : start + _TILE]]) - center
        distances = squares[:, None] + np.einsum("nd,nd->n", part, part) - 2 * some @ part.T
        counts += _count_high_bits(np.maximum(distances, 0).ravel())
    return SampledDistances(counts, number * (number - 1) // 2)


def _count_high_bits(distances: np.ndarray) -> np.ndarray:
    return np.bincount(distances.view(np.uint32) >> 16, minlength=1 << 16)


def further(aim: float, count: int, found: int) -> float:
    """How many pairs to aim at where `found` are fewer than `count`."""
    return aim * max(4.0, MORE * count / max(found, 1))


def last_pair(found: FoundPairs, count: int) -> LastPair:
    """The last of the `count` closest of the pairs found, of which there are at least as many."""
    distance = _kth_distance(found, count)
    ties, nearer = [], 0
    for part in found.parts():
        nearer += int((part.distances < distance).sum())
        ties.append(part.where(part.distances == distance))
        if sum(len(tie.first) for tie in ties) > count + _PART:
            ties = [sort_pairs(join_pairs(ties)).where(slice(count))]
    tied, at = sort_pairs(join_pairs(ties)), count - nearer - 1
    return LastPair(distance, int(tied.first[at]), int(tied.second[at]))


def _kth_distance(found: FoundPairs, count: int) -> float:
    """The distance of the pair number `count`: first the upper half of its bits, then the lower."""
    counts = np.zeros(1 << 16, np.int64)
    for part in found.parts():
        counts += _count_high_bits(part.distances)
    high = int(np.searchsorted(np.cumsum(counts), count))
    left = count - int(counts[:high].sum())
    counts = np.zeros(1 << 16, np.int64)
    for part in found.parts():
        bits = part.distances.view(np.uint32)
        counts += np.bincount(bits[bits >> 16 == high] & 0xFFFF, minlength=1 << 16)
    low = int(np.searchsorted(np.cumsum(counts), left))
    return float(np.array(high << 16 | low, np.uint32).view(np.float32))
