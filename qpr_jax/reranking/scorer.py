"""The raw score of a hit: the sum of trees and of a small network over its features."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.machine import cpu_count
from qpr_jax.reranking import network as networks
from qpr_jax.reranking.network import Network
from qpr_jax.reranking.trees import Forest, check_forest, predict

_PREFIX = "network."
_ROWS = 4096  # that a thread takes at a time


class Scorer(NamedTuple):
    """Trees and, unless None, a network; the raw score is the sum of their outputs."""

    forest: Forest
    network: Network | None = None


def score_features(scorer: Scorer, features: np.ndarray) -> np.ndarray:
    """Compute the raw scores of rows of features, float32 [m, f]: float64 [m]."""

    def score(start: int) -> np.ndarray:
        rows = features[start : start + _ROWS]
        scores = predict(scorer.forest, rows)
        if scorer.network is not None:
            scores += networks.predict(scorer.network, rows)
        return scores

    if len(features) <= _ROWS:
        return score(0)
    with concurrent.futures.ThreadPoolExecutor(cpu_count()) as pool:
        return np.concatenate([*pool.map(score, range(0, len(features), _ROWS))])


def to_tensors(scorer: Scorer) -> dict[str, np.ndarray]:
    """Return the arrays of a scorer by name, as in a safetensors file."""
    tensors = scorer.forest._asdict()
    if scorer.network is not None:
        tensors |= {f"{_PREFIX}{name}": a for name, a in scorer.network._asdict().items()}
    return {name: np.ascontiguousarray(array) for name, array in tensors.items()}


def from_tensors(tensors: Mapping[str, np.ndarray], columns: int, where: str) -> Scorer:
    """Make a scorer over `columns` features of arrays; UserError, with `where`, for others."""
    trees, layers = {*Forest._fields}, {f"{_PREFIX}{name}" for name in Network._fields}
    if {*tensors} not in (trees, trees | layers):
        raise UserError(
            f"{where}: expected {', '.join(sorted(trees))}, and perhaps "
            f"{', '.join(sorted(layers))}, got {', '.join(sorted(tensors))}",
            remedy="train the run again, or fetch the model again",
        )
    network = None
    if layers <= {*tensors}:
        network = Network(*(tensors[f"{_PREFIX}{name}"] for name in Network._fields))
    scorer = Scorer(Forest(*(tensors[name] for name in Forest._fields)), network)
    check_scorer(scorer, columns, where)
    return scorer


def check_scorer(scorer: Scorer, columns: int, where: str) -> None:
    """Raise a UserError unless the arrays fit each other and `columns` features."""
    check_forest(scorer.forest, columns, where)
    if scorer.network is not None:
        networks.check_network(scorer.network, columns, where)
