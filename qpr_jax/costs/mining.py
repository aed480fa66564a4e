"""What finding all duplicates will take."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from qpr_jax.costs.encoding import measure_encoding
from qpr_jax.costs.estimate import WRITE_RATE, Estimate, fits, refuse
from qpr_jax.costs.rows import Sample
from qpr_jax.encoders.base import Encoder
from qpr_jax.files import StrPath
from qpr_jax.index.mining import close_pairs
from qpr_jax.index.pair_codes import Axes, encode_all
from qpr_jax.index.pair_search import EXACT_LIMIT
from qpr_jax.index.pair_tasks import ROWS, rectangle, run_all, run_task
from qpr_jax.machine import held_memory

_CODE = 64  # coordinates of a code, about
_OTHERS = 32_768  # vectors that are compared with ROWS others, at least twice
_CENTROIDS = 2048  # vectors whose products are timed
_PAIRED = 4096  # vectors whose close pairs are counted
_NEAR_ROWS = 16  # between rows that lie near each other
_PAIR_SECONDS = 12e-6  # to score, group and write a pair
_PAIR_DISK = 100  # bytes of a pair found, and of a line without its texts
# Of vectors in lists: those that each is compared with, as a multiple of the number of lists, and
# the questions whose exact pairs choose the overlap.
_LIST_PAIRS, _SAMPLED = 6, 4096
_BASE, _ROW_BYTES = 400 << 20, 100  # memory that the search holds, and for each question


def mine_estimate(
    out: StrPath,
    encoder: Encoder,
    *,
    max_distance: float | None,
    count: int | None,
    share: Callable[[Sample], float] = lambda sample: 1.0,
) -> Callable[[Sample], Estimate]:
    """A function from a sample to what all close pairs of its questions take.

    max_distance: of a pair, if known. count: of pairs, if known. share: of all pairs of questions,
    how many are compared.
    """

    def estimate(sample: Sample) -> Estimate:
        questions, dimension = sample.count, encoder.dimension
        encoding = measure_encoding(encoder, sample.questions)
        pairs = min(count or 0, questions**2 // 2)
        if max_distance is not None:
            pairs = round(
                share(sample) * _expected_pairs(encoding.vectors, questions, max_distance)
            )
        compare = share(sample) * _compare_seconds(questions, dimension)
        files = 4 * questions * (dimension + _CODE + 1)
        disk = round(files + pairs * (_PAIR_DISK + 2 * sample.text_bytes))
        seconds = questions * (encoding.seconds + sample.read_seconds) + compare
        found = Estimate(
            seconds=seconds + pairs * _PAIR_SECONDS + disk / WRITE_RATE,
            # The vectors and their codes are in files, of which memory holds what it has room for.
            memory=held_memory() + _BASE + _ROW_BYTES * questions,
            disk=disk,
            count=questions,
            rate=questions / seconds,
            exact=sample.exact,
        )
        if not fits(found, out):
            few = dataclasses.replace(found, disk=files)
            if count is not None and fits(few, out):
                refuse(found, out, remedy="ask for fewer pairs with {pairs}")
            if max_distance is not None and fits(few, out):
                refuse(found, out, remedy="lower {max_distance}, or raise {threshold}")
            refuse(found, out, remedy="give fewer {questions}")
        return found

    return estimate


def _compare_seconds(count: int, dimension: int) -> float:
    """Seconds to compare `count` vectors, all or those of lists."""
    if count <= EXACT_LIMIT:
        return count**2 / 2 * _pair_seconds(dimension)
    lists = 2 * count**0.5
    pairs = count * (_LIST_PAIRS * lists + _SAMPLED)
    return pairs * _pair_seconds(dimension) + count * lists * _centroid_seconds(dimension)


def _centroid_seconds(dimension: int) -> float:
    """Seconds to compare a vector with a centroid, on all cores."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((_CENTROIDS, dimension), np.float32)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        (vectors @ vectors.T).min(axis=1)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:])) / _CENTROIDS**2


def _pair_seconds(dimension: int) -> float:
    """Seconds to compare a pair of vectors on all cores; their values do not matter."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((ROWS + _OTHERS, dimension), np.float32)
    directions = np.eye(dimension, min(dimension, _CODE - 1), dtype=np.float32)
    codes = encode_all(Axes(np.zeros(dimension, np.float32), directions), vectors)
    tasks = [*rectangle(np.arange(ROWS), np.arange(ROWS, len(vectors)))]
    times = []
    for _ in range(4):
        start = time.perf_counter()
        for _ in run_all(tasks, lambda task: run_task(task, vectors, codes, 0.0)):
            pass
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:])) / (ROWS * _OTHERS)


def _expected_pairs(vectors: np.ndarray, count: int, max_distance: float) -> int:
    """Pairs among `count` questions, by those among the vectors of the first ones.

    Rows that lie near each other are alike more often, as in a file of pairs: such pairs grow with
    the number of questions, all others with its square.
    """
    vectors = vectors[:_PAIRED]
    if len(vectors) < 2:
        return 0
    found = close_pairs(vectors, max_distance, most=_PAIRED**2)
    near = int((found.second - found.first <= _NEAR_ROWS).sum())
    times = count / len(vectors)
    return round(near * times + (len(found.first) - near) * times**2)
