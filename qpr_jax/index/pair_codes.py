"""Short codes of vectors, whose distances are lower bounds of those of the vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from qpr_jax.errors import UserError

_PART = 16_384  # vectors that are encoded at once
_FITTED, _TRIED = 20_000, 2048  # vectors whose axes are found, and whose pairs choose their number
_SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# Share of the squared lengths by which float32 may be off: codes of 1,024 coordinates stay within.
_SLACK = 2e-4
# Seconds of a pair of codes, of each coordinate of it, and of a distance and each of its
# coordinates, relative to one another, measured on one core (AVX-512). Only speed depends on them.
_PAIR, _PAIR_COORDINATE, _DISTANCE, _DISTANCE_COORDINATE = 0.6, 0.022, 40.0, 0.1


class Codes(NamedTuple):
    """Codes float32 [N, K], K a multiple of 4, and half of their squared lengths float32 [N]."""

    values: np.ndarray
    halves: np.ndarray

    def take(self, rows: np.ndarray) -> Codes:
        """The codes of some rows, and others of zeros to a multiple of 4."""
        count = len(rows) + -len(rows) % 4
        values = np.zeros((count, self.values.shape[1]), np.float32)
        halves = np.zeros(count, np.float32)
        values[: len(rows)], halves[: len(rows)] = self.values[rows], self.halves[rows]
        return Codes(values, halves)


NO_CODES = Codes(np.zeros((0, 0), np.float32), np.zeros(0, np.float32))  # small blocks need none


class Axes(NamedTuple):
    """Where codes begin and point: center float32 [d], orthogonal unit axes float32 [d, m]."""

    center: np.ndarray
    directions: np.ndarray

    @property
    def code_size(self) -> int:
        """K of the codes: a coordinate for each axis and one for the rest, rounded up."""
        dimension, axes = self.directions.shape
        size = axes + (axes < dimension)
        return size + -size % 4

    def encode(self, vectors: np.ndarray) -> Codes:
        """The codes of float32 [n, d]."""
        moved = vectors - self.center
        values = np.zeros((len(vectors), self.code_size), np.float32)
        dimension, axes = self.directions.shape
        values[:, :axes] = moved @ self.directions
        if axes < dimension:
            # Not from the squared lengths, whose difference is rounded much more than this.
            rest = moved - values[:, :axes] @ self.directions.T
            values[:, axes] = np.sqrt(np.einsum("nd,nd->n", rest, rest))
        lengths = np.einsum("nd,nd->n", moved.astype(np.float64), moved)
        # The products of codes are rounded, and no pair may be lost: a bound is a little too low.
        halves = (lengths * (0.5 * (1 - _SLACK))).astype(np.float32)
        return Codes(values, halves)


def check_finite(vectors: np.ndarray) -> None:
    """UserError if a squared length of float32 [N, d] is not a finite number."""
    for start in range(0, len(vectors), _PART):
        part = np.asarray(vectors[start : start + _PART])
        if not np.isfinite(np.einsum("nd,nd->n", part, part)).all():
            raise UserError("`vectors`: expected finite numbers, got others; is the encoder sound?")


def fit_axes(vectors: np.ndarray, most: float, *, seed: int = 0) -> Axes:
    """The first principal axes of float32 [N, d], as many as compare pairs fastest.

    Fewer make products cheaper, more refuse more pairs that are further apart than `most`; what is
    best is measured on the pairs of a sample.
    """
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(len(vectors), min(len(vectors), _FITTED), replace=False))
    sample = np.asarray(vectors[rows])
    center = sample.mean(axis=0, dtype=np.float64).astype(np.float32)
    moved = (sample - center).astype(np.float32)
    _, directions = np.linalg.eigh((moved.T @ moved).astype(np.float64))
    directions = np.ascontiguousarray(directions[:, ::-1], np.float32)
    dimension = sample.shape[1]
    tried = sample[rng.choice(len(sample), min(len(sample), _TRIED), replace=False)]

    def cost(axes: Axes) -> float:
        codes = axes.encode(tried)
        survive = _share_within(codes, most)
        coordinates = _PAIR + _PAIR_COORDINATE * axes.code_size
        return coordinates + survive * (_DISTANCE + _DISTANCE_COORDINATE * dimension)

    sizes = [size - 1 for size in _SIZES if size <= dimension] or [dimension]
    return _cheapest([Axes(center, np.ascontiguousarray(directions[:, :m])) for m in sizes], cost)


def encode_all(axes: Axes, vectors: np.ndarray, into: Codes | None = None) -> Codes:
    """The codes of float32 [N, d], a part at a time; `into` given arrays (of a file, say)."""
    codes = into or empty_codes(axes, len(vectors))
    for start in range(0, len(vectors), _PART):
        some = slice(start, start + _PART)
        codes.values[some], codes.halves[some] = axes.encode(np.asarray(vectors[some]))
    return codes


def empty_codes(axes: Axes, count: int) -> Codes:
    """Arrays for the codes of `count` vectors."""
    return Codes(np.empty((count, axes.code_size), np.float32), np.empty(count, np.float32))


def _share_within(codes: Codes, most: float) -> float:
    """The share of pairs whose lower bound is at most `most`."""
    count = len(codes.halves)
    if count < 2:
        return 0.0
    products = codes.values @ codes.values.T - codes.halves[:, None]
    within = int((products >= codes.halves - np.float32(most / 2)).sum())
    return max(0, within - count) / (count * (count - 1))


def _cheapest(axes: list[Axes], cost: Callable[[Axes], float]) -> Axes:
    """The first of which the next one costs more, or the last."""
    best, least = axes[0], cost(axes[0])
    for other in axes[1:]:
        if (found := cost(other)) > least:
            break
        best, least = other, found
    return best
