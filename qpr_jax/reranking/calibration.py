"""The probability that two texts mean the same, and its file.

It is a function of the two texts alone: logistic regression on `reranking.pairs.PairFeatures`,
with hinges and products. The folder has a manifest and a safetensors file; it lies in the
folder of its encoder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qpr_jax.encoders.base import serialize_tensors
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, write_folder
from qpr_jax.reranking.model_folder import check_array, read_model

FORMAT = "qpr_jax pair calibration 1"
CALIBRATION = "calibration"  # sub-folder of an encoder's folder
LEAST_VERDICTS = 20  # of people, to which it is fitted
WEIGHTS = "calibration.safetensors"
_ARRAYS = ("mean", "scale", "weights")
_NUMBERS = ("reach", "bias", "slope", "shift", "order")
# Features that all are multiplied by: root of the squared distance, words in common order, cosine
# of words, negations. A word more or less says more of two close texts than of two distant ones.
_FACTORS = (0, 11, 2, 6)
_FACTS = {"encoder": str, "reranker": str, "settings": dict} | dict.fromkeys(_NUMBERS, float)
_CLIP = 4.0  # in standard deviations: features are clipped to it


@dataclass(frozen=True)
class PairCalibration:
    """Logistic regression from f features of a pair to the probability that both mean the same."""

    encoder: str  # its identity
    reach: float  # the largest squared distance at which duplicates are looked for
    mean: np.ndarray  # float64 [f]; with the scale, it standardizes the features
    scale: np.ndarray  # float64 [f]
    weights: np.ndarray  # float64 [g], of `inputs`
    bias: float = 0.0  # added to their sum
    # The `LightModel.identity` of the re-ranker whose word statistics the features need; "": they
    # are of the distance alone.
    reranker: str = ""
    slope: float = 1.0  # slope and shift are fitted to verdicts of people; they move the logit
    shift: float = 0.0
    # The weight of the logit in the order of hits, beside the score of a light re-ranker that has
    # learned from no labels.
    order: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)  # facts of its fit and its test

    def inputs(self, features: np.ndarray) -> np.ndarray:
        """Standardize and clip features [P, f]: [P, g], with two hinges of each, and products."""
        values = ((features - self.mean) * self.scale).clip(-_CLIP, _CLIP)
        hinges = np.maximum(values, 0), np.maximum(-1 - values, 0)
        factors = [values[:, i, None] for i in _FACTORS if i < values.shape[1]]
        return np.hstack([values, *hinges, *(values * factor for factor in factors)])

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Compute the logits before verdicts of people, float64 [P], of features [P, f]."""
        return np.asarray(self.inputs(features) @ self.weights + self.bias)

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Compute the probabilities of pairs, float64 [P], from their features [P, f].

        Rounded, since the last bits depend on the number of pairs.
        """
        return logistic(self.slope * self.logits(features) + self.shift).round(6)


def inputs_of(features: int) -> int:
    """Return how many inputs f features make: g."""
    return features * (3 + sum(i < features for i in _FACTORS))


def logistic(x: np.ndarray) -> np.ndarray:
    """Convert logits to probabilities."""
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -500, 500))))


def save_calibration(folder: StrPath, calibration: PairCalibration) -> None:
    """Write a calibration; replaces the folder as a whole."""
    arrays = {name: getattr(calibration, name) for name in _ARRAYS}
    facts = {name: getattr(calibration, name) for name in _FACTS}
    write_folder(folder, {WEIGHTS: serialize_tensors(arrays)}, format=FORMAT, **facts)


def read_calibration(folder: StrPath) -> PairCalibration:
    """Read and verify a calibration; UserError if it is damaged or of another version."""
    manifest, arrays = read_model(folder, WEIGHTS, format=FORMAT, facts=_FACTS)
    size = arrays["mean"].size if "mean" in arrays else 0
    sizes = {"mean": size, "scale": size, "weights": inputs_of(size)}
    known: dict[str, Any] = {
        name: check_array(arrays, name, np.float64, (size,), str(folder))
        for name, size in sizes.items()
    }
    return PairCalibration(**known, **{name: manifest[name] for name in _FACTS})


def calibrate(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Fit labels, 0 or 1, by scores: ascending scores and their probabilities, float64 [2, c].

    Isotonic regression: the probabilities never fall as the scores rise.

    Source: Zadrozny and Elkan (2002).
    """
    # Imported here because only training needs it. scikit-learn's takes two seconds more to import.
    from scipy.optimize import isotonic_regression

    places, entry, counted = np.unique(
        np.asarray(scores, np.float64), return_inverse=True, return_counts=True
    )
    means = np.bincount(entry, labels) / counted
    values = isotonic_regression(means, weights=counted).x.clip(0, 1)
    steps = np.diff(values) != 0
    ends = np.append(True, steps) | np.append(steps, True)  # of each level
    # Rounding may leave the values unsorted in the last bit.
    return np.maximum.accumulate(np.stack([places, values])[:, ends], axis=1)


def threshold_of_precision(probabilities: np.ndarray, precision: float) -> float:
    """Return the lowest threshold at which the mean probability is at least `precision`.

    The mean is over the pairs with at least the threshold, and is the precision that the
    calibration expects of them. UserError if no threshold has it.
    """
    ordered = -np.sort(-probabilities)
    # Pairs of one probability are found together, so only the last of them is a threshold.
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)[: len(ordered)])
    means = (np.cumsum(ordered) / np.arange(1, 1 + len(ordered)))[last]
    good = np.flatnonzero(means >= precision)
    if not len(good):
        best = f"at most {means.max():.4f}" if len(means) else "no pairs"
        what = f"expected pairs with a mean probability of {precision:g}, got {best}"
        raise UserError(what, setting="precision", remedy="lower the precision")
    return float(ordered[last[good[-1]]])


def without_curves(facts: Any) -> Any:
    """Leave the reliability curves, long lists, out of facts."""
    if not isinstance(facts, dict):
        return facts
    return {name: without_curves(value) for name, value in facts.items() if name != "curve"}
