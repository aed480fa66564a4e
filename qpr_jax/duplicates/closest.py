"""The closest pairs in memory; stands in until the search has its own."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from qpr_jax.index.mining import Pairs, closest_pairs


class Closest:
    exact, missed = True, 0.0

    def __init__(self, pairs: Pairs) -> None:
        self.pairs, self.count = pairs, len(pairs.first)

    def parts(self) -> Iterator[Pairs]:
        yield self.pairs


def find_closest(vectors: np.ndarray, count: int, folder: pathlib.Path, **how: Any) -> Any:
    blocks, is_new, compare = how["blocks"], how["is_new"], how["compare"]
    few = blocks is None and is_new is None
    pairs = closest_pairs(np.asarray(vectors), count if few else len(vectors) ** 2)
    kept = np.ones(len(pairs.first), bool)
    if blocks is not None:
        kept &= blocks[pairs.first] == blocks[pairs.second]
    if is_new is not None and compare != "all":
        a, b = is_new[pairs.first], is_new[pairs.second]
        kept &= (a != b) if compare == "across" else (a | b)
    return Closest(Pairs(*(v[kept][:count] for v in pairs)))
