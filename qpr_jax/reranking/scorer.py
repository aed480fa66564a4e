"""What turns features into the raw score of a hit: trees, and a small network beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.reranking import network as networks
from qpr_jax.reranking.network import Network
from qpr_jax.reranking.trees import Forest, check_forest, predict

_PREFIX = "network."


class Scorer(NamedTuple):
    """The sum of both; trees alone where there is no network."""

    forest: Forest
    network: Network | None = None


def score_features(scorer: Scorer, features: np.ndarray) -> np.ndarray:
    """The raw scores of rows of features, float32 [m, f]: float64 [m]."""
    scores = predict(scorer.forest, features)
    if scorer.network is not None:
        scores += networks.predict(scorer.network, features)
    return scores


def to_tensors(scorer: Scorer) -> dict[str, np.ndarray]:
    """The arrays of a scorer by name, as a file of safetensors has them."""
    tensors = scorer.forest._asdict()
    if scorer.network is not None:
        tensors |= {f"{_PREFIX}{name}": a for name, a in scorer.network._asdict().items()}
    return {name: np.ascontiguousarray(array) for name, array in tensors.items()}


def from_tensors(tensors: Mapping[str, np.ndarray], columns: int, where: str) -> Scorer:
    """The scorer of arrays over so many features; UserError, with `where`, for anything else."""
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
    """UserError where arrays do not fit each other and so many features."""
    check_forest(scorer.forest, columns, where)
    if scorer.network is not None:
        networks.check_network(scorer.network, columns, where)
