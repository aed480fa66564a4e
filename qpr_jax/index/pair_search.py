"""All pairs of vectors within a distance. Exact, in memory; stands in until the search of large sets."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qpr_jax.index.mining import Pairs, close_pairs, closest_pairs

_PART = 1 << 20


@dataclass(frozen=True)
class FoundPairs:
    pairs: Pairs
    exact: bool = True
    missed: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.pairs.first)

    def parts(self) -> Iterator[Pairs]:
        for start in range(0, self.count, _PART):
            yield Pairs(*(v[start : start + _PART] for v in self.pairs))


def find_pairs(
    vectors: np.ndarray,
    max_distance: float,
    folder: pathlib.Path,
    *,
    memory: int,
    blocks: np.ndarray | None = None,
    is_new: np.ndarray | None = None,
    compare: str = "all",
    exact: bool | None = None,
    seed: int = 0,
    log: Callable[[str], object] = lambda line: None,
) -> FoundPairs:
    pairs = close_pairs(np.asarray(vectors), max_distance, most=10**9)
    return FoundPairs(_kept(pairs, blocks, is_new, compare))


def find_closest(
    vectors: np.ndarray,
    count: int,
    folder: pathlib.Path,
    *,
    memory: int,
    blocks: np.ndarray | None = None,
    is_new: np.ndarray | None = None,
    compare: str = "all",
    exact: bool | None = None,
    seed: int = 0,
    log: Callable[[str], object] = lambda line: None,
) -> FoundPairs:
    most = len(vectors) ** 2 if blocks is not None or is_new is not None else count
    pairs = _kept(closest_pairs(np.asarray(vectors), most), blocks, is_new, compare)
    return FoundPairs(Pairs(*(v[:count] for v in pairs)))


def _kept(
    pairs: Pairs, blocks: np.ndarray | None, is_new: np.ndarray | None, compare: str
) -> Pairs:
    kept = np.ones(len(pairs.first), bool)
    if blocks is not None:
        kept &= blocks[pairs.first] == blocks[pairs.second]
    if is_new is not None and compare != "all":
        a, b = is_new[pairs.first], is_new[pairs.second]
        kept &= (a != b) if compare == "across" else (a | b)
    return Pairs(*(v[kept] for v in pairs))
