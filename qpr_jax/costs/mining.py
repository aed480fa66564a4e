"""What `qpr mine` will take."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable

import faiss
import numpy as np

from qpr_jax.costs.encoding import measure_encoding
from qpr_jax.costs.estimate import WRITE_RATE, Estimate, fits, refuse
from qpr_jax.costs.rows import Sample
from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import spell
from qpr_jax.files import StrPath
from qpr_jax.index.mining import close_pairs
from qpr_jax.machine import held_memory

log = logging.getLogger("qpr_jax")

TILE, SLICE = 8192, 1024
_COMPARED = 4096  # vectors that are compared with SLICE others, at least twice
_PAIRED = 2048  # vectors whose close pairs are counted
_PAIR_SECONDS, _PAIR_BYTES = 12e-6, 250  # to sort, cluster and write a pair; in memory
_PAIR_DISK = 80  # bytes of a line without its texts


def mine_estimate(
    out: StrPath, encoder: Encoder, *, threshold: float | None, count: int | None, most: int
) -> Callable[[Sample], Estimate]:
    """A function from a sample to what all close pairs of its questions take.

    threshold: the largest distance, if known. count: of pairs, if known. most: of pairs that are
    allowed, about which it warns.
    """

    def estimate(sample: Sample) -> Estimate:
        questions, dimension = sample.count, encoder.dimension
        encoding = measure_encoding(encoder, sample.questions)
        pairs = min(count or 0, questions**2 // 2)
        if threshold is not None:
            pairs = _expected_pairs(encoding.vectors, questions, threshold)
            if pairs > most:
                text = "warning: about %s pairs are expected; lower {threshold}, or raise {most}"
                log.warning(spell(text), f"{pairs:,}")
        compare = count_blocks(questions) * _block_seconds(encoding.vectors)
        disk = round(pairs * (_PAIR_DISK + 2 * sample.text_bytes))
        seconds = questions * (encoding.seconds + sample.read_seconds) + compare
        found = Estimate(
            seconds=seconds + pairs * _PAIR_SECONDS + disk / WRITE_RATE,
            # The vectors, and those less their mean.
            memory=held_memory() + 8 * dimension * questions + _PAIR_BYTES * pairs + (64 << 20),
            disk=disk,
            count=questions,
            rate=questions / seconds,
            exact=sample.exact,
        )
        if not fits(found, out):
            few = dataclasses.replace(found, memory=found.memory - _PAIR_BYTES * pairs, disk=0)
            if count is not None and fits(few, out):
                refuse(found, out, remedy="ask for fewer pairs with {count}")
            if threshold is not None and fits(few, out):
                refuse(found, out, remedy="lower {threshold}")
            refuse(found, out, remedy="give fewer {questions}")
        return found

    return estimate


def _block_seconds(vectors: np.ndarray) -> float:
    """Seconds to compare TILE vectors with SLICE others; their values do not matter."""
    rng = np.random.default_rng(0)
    dimension = vectors.shape[1]
    tile = faiss.IndexFlatL2(dimension)
    tile.add(rng.standard_normal((_COMPARED, dimension), np.float32))
    others = rng.standard_normal((SLICE, dimension), np.float32)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        tile.range_search(others, 0.0)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:])) * TILE / _COMPARED


def _expected_pairs(vectors: np.ndarray, count: int, threshold: float) -> int:
    """Pairs among `count` questions, by those among the vectors of some, drawn at random."""
    if len(vectors) < 2:
        return 0
    vectors = vectors[:_PAIRED]
    found = len(close_pairs(vectors, threshold, most=_PAIRED**2).first)
    return round(found * count * (count - 1) / (len(vectors) * (len(vectors) - 1)))


def count_blocks(count: int) -> int:
    starts = range(0, count, TILE)
    return sum(-(-(count - start) // SLICE) for start in starts)
