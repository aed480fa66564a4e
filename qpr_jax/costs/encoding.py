"""How fast an encoder is on a user's own questions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.costs.estimate import WRITE_RATE, Estimate, fits, refuse
from qpr_jax.costs.rows import Sample
from qpr_jax.encoders.base import Encoder
from qpr_jax.files import StrPath
from qpr_jax.index.vectors_file import CHUNK
from qpr_jax.machine import held_memory

_FIRST = 64  # questions that are encoded at first; then four times as many each time
_SECONDS = 0.4  # of encoding
_FEW = 2048  # questions, of which only the words that they have are worth preparing


class EncodingCosts(NamedTuple):
    """What encoding takes.

    Attributes:
      seconds: for a question.
      first_seconds: for what is computed and compiled once.
      vectors: of some questions, float32 [n, d].
    """

    seconds: float
    first_seconds: float
    vectors: np.ndarray

    def all_seconds(self, count: int) -> float:
        """Seconds to encode `count` questions."""
        return self.first_seconds + count * self.seconds


def measure_encoding(encoder: Encoder, questions: Sequence[str]) -> EncodingCosts:
    """Time the encoding of a batch of the questions that takes long enough to be timed.

    Afterwards the encoder holds as much memory as it ever will for these questions, or for any if
    they are more than a few.
    """
    start = time.perf_counter()
    if len(questions) > _FEW:
        encoder.warm_up()
    encoder.encode(questions[:_FIRST])
    size, encoded = _FIRST, _FIRST
    while True:
        # The first time may compile for a new shape, and either may wait for other programs.
        times = []
        for _ in range(2):
            begun = time.perf_counter()
            vectors = encoder.encode(questions[:size])
            times.append(time.perf_counter() - begun)
        encoded += 2 * size
        if min(times) > _SECONDS / 2 or size >= len(questions):
            break
        size = min(4 * size, len(questions))
    seconds = min(times) / max(1, min(size, len(questions)))
    first = time.perf_counter() - start - encoded * seconds
    return EncodingCosts(seconds, max(0.0, first), vectors)


def encode_estimate(out: StrPath, encoder: Encoder) -> Callable[[Sample], Estimate]:
    """A function from a sample to what the file of the vectors of its questions takes."""

    def estimate(sample: Sample) -> Estimate:
        costs = measure_encoding(encoder, sample.questions)
        disk = 4 * encoder.dimension * sample.count
        seconds = costs.seconds + sample.read_seconds + 4 * encoder.dimension / WRITE_RATE
        found = Estimate(
            seconds=sample.count * seconds,
            memory=held_memory() + round(CHUNK * (8 * encoder.dimension + sample.text_bytes)),
            disk=disk,
            count=sample.count,
            rate=1 / max(costs.seconds, 1e-9),
            exact=sample.exact,
        )
        if not fits(found, out):
            refuse(found, out, remedy="name a file on another disk with {out}")
        return found

    return estimate
