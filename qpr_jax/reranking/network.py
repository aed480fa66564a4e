"""A small neural network over the features of a hit: its arrays, and its output in numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qpr_jax.machine import compile_loop
from qpr_jax.reranking.model_folder import check_array

CLIP = 4.0  # in standard deviations: standardized features are clipped to it


class Network(NamedTuple):
    """score = linear @ z + output @ relu(z @ hidden + bias), z the standardized features.

    All are float32.

    Attributes:
      mean, scale: [f], z = clip((features - mean) * scale).
      hidden: [f, h].
      bias: [h].
      output: [h].
      linear: [f].
    """

    mean: np.ndarray
    scale: np.ndarray
    hidden: np.ndarray
    bias: np.ndarray
    output: np.ndarray
    linear: np.ndarray


def predict(network: Network, features: np.ndarray) -> np.ndarray:
    """Compute the score of each row of features, float32 [m, f]: float64 [m]."""
    scores = np.empty(len(features), np.float64)
    _score(tuple(network), np.ascontiguousarray(features, np.float32), scores)
    return scores


def standardize(network: Network, features: Any) -> Any:
    """Compute z (see `Network`) of a NumPy or JAX array [..., f]."""
    return ((features - network.mean) * network.scale).clip(-CLIP, CLIP)


def check_network(network: Network, columns: int, where: str) -> None:
    """Raise a UserError unless the arrays are a network over `columns` features."""
    f, h = columns, len(network.bias) if network.bias.ndim == 1 else 0
    shapes: list[tuple[int, ...]] = [(f,), (f,), (f, h), (h,), (h,), (f,)]
    for name, array, shape in zip(Network._fields, network, shapes, strict=True):
        check_array(array, name, np.float32, shape, where)


@compile_loop(fastmath={"contract"})
def _score(network, features, scores):  # type: ignore[no-untyped-def]
    """Write the scores; the bits of a row's score do not depend on the other rows."""
    mean, scale, hidden, bias, output, linear = network
    width, units = hidden.shape
    total = np.empty(units, np.float32)
    clip = np.float32(CLIP)
    for row in range(len(features)):
        score = np.float64(0)
        for i in range(units):
            total[i] = bias[i]
        for f in range(width):
            z = (features[row, f] - mean[f]) * scale[f]
            z = min(max(z, -clip), clip)
            score += np.float64(linear[f]) * z
            weights = hidden[f]
            for i in range(units):
                total[i] += z * weights[i]
        for i in range(units):
            score += np.float64(output[i]) * max(total[i], np.float32(0))
        scores[row] = score
