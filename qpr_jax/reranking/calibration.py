"""Probabilities that a pair found among all questions of a corpus is a duplicate, and their file.

They are not those of a re-ranker's hits: of the pairs of all questions within a distance, most are
no duplicates. The folder has a manifest and a safetensors file; it lies in the folder of its
encoder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.reranking.model_folder import check_points, read_model, write_model

FORMAT = "qpr_jax pair calibration 1"
CALIBRATION = "calibration"  # sub-folder of an encoder's folder
CURVES = "calibration.safetensors"
_FACTS = {"encoder": str, "reach": float, "reranker": str, "settings": dict, "before_reranker": str}
_REMEDY = "calibrate again with `qpr calibrate`, or fetch the model again"


@dataclass(frozen=True)
class PairCalibration:
    """From distances, and from scores of the light re-ranker, to probabilities.

    Attributes:
      encoder: the identity of the encoder.
      distance: float64 [2, c], minus squared distances and their probabilities, both ascending;
        interpolated linearly.
      reach: the largest squared distance of a pair that it was fitted on. `reranking.pairs` takes
        the pairs up to this distance as the hits of a text.
      light: float64 [2, c], raw scores of `reranking.pairs` and their probabilities; None without.
      reranker: the `LightModel.identity` of the re-ranker of `light`; "" without.
      settings: facts of its fit and of its test, for users.
      before: the calibration that was refitted to verdicts, without its own `before`; None if this
        one was not.
    """

    encoder: str
    distance: np.ndarray
    reach: float
    light: np.ndarray | None = None
    reranker: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    before: PairCalibration | None = None

    def __repr__(self) -> str:
        by = "distance and re-ranker" if self.light is not None else "distance"
        return f"<PairCalibration: by {by}, up to {self.reach:.4g}>"

    def probabilities(self, distances: np.ndarray) -> np.ndarray:
        """Convert squared distances, float [P], to probabilities, float64 [P]."""
        return np.interp(-np.asarray(distances, np.float64), *self.distance)

    def identity(self, *, light: bool) -> str:
        """Hash a curve, of the re-ranker or of distances: what names the scores by it."""
        curve = self.light if light else self.distance
        name = f"{self.encoder} {self.reranker if light else ''} ".encode()
        return hashlib.sha256(name + np.ascontiguousarray(curve).tobytes()).hexdigest()[:16]

    def light_probabilities(self, raw: np.ndarray) -> np.ndarray:
        """Convert raw scores of `reranking.pairs`, float64 [P], to probabilities, float64 [P]."""
        assert self.light is not None
        return np.interp(raw, *self.light)

    def distance_at(self, probability: float) -> float:
        """Return the largest squared distance with at least this probability; 0 for none.

        0 is the probability of no distance beyond the curve, and gives the end of the curve.
        """
        places, values = self.distance
        at = int(np.searchsorted(values, probability))
        if at == len(values):
            return 0.0
        place = places[at]
        if at and values[at] > probability:
            share = (probability - values[at - 1]) / (values[at] - values[at - 1])
            place = places[at - 1] + share * (places[at] - places[at - 1])
        while np.interp(place, places, values) < probability:  # by rounding
            place = np.nextafter(place, places[at])
        return float(max(0.0, -place))


def save_calibration(folder: StrPath, calibration: PairCalibration) -> None:
    """Write a calibration; replaces the folder as a whole."""
    before = calibration.before
    curves = {"distance": calibration.distance, "light": calibration.light}
    if before:
        curves |= {"before_distance": before.distance, "before_light": before.light}
    facts = {name: getattr(calibration, name) for name in ("encoder", "reach", "reranker")}
    facts |= {
        "settings": calibration.settings,
        "before_reranker": before.reranker if before else "",
    }
    known = {name: curve for name, curve in curves.items() if curve is not None}
    write_model(folder, CURVES, known, format=FORMAT, facts=facts)


def read_calibration(folder: StrPath) -> PairCalibration:
    """Read and verify a calibration; UserError if it is damaged or of another version."""
    if not pathlib.Path(folder).is_dir():
        what = f"{folder}: expected the folder of a calibration, found none"
        raise UserError(what, remedy=_REMEDY)
    manifest, curves = read_model(folder, CURVES, format=FORMAT, facts=_FACTS)
    if not 0 <= manifest["reach"] < np.inf:
        what = f"{folder}: expected a distance as `reach`, got {manifest['reach']}"
        raise UserError(what, remedy=_REMEDY)
    before = None
    if "before_distance" in curves:
        before = _parse(manifest, curves, "before_", str(folder))
    found = _parse(manifest, curves, "", str(folder))
    return dataclasses.replace(found, settings=manifest["settings"], before=before)


def _parse(
    manifest: Mapping[str, Any], curves: Mapping[str, np.ndarray], prefix: str, where: str
) -> PairCalibration:
    """Make a calibration of the curves with a prefix to their names."""
    reranker, light = manifest[f"{prefix}reranker"], curves.get(f"{prefix}light")
    if (light is None) is bool(reranker):
        raise UserError(f"{where}: expected a curve for the re-ranker named", remedy=_REMEDY)
    if light is not None:
        check_points(light, f"{prefix}light", where)
    name = f"{prefix}distance"
    distance = check_points(curves.get(name), name, where)
    return PairCalibration(manifest["encoder"], distance, manifest["reach"], light, reranker)


def calibrate(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """Fit labels, 0 or 1, by scores: ascending scores and their probabilities, float64 [2, c].

    Isotonic regression: the probabilities never fall as the scores rise.

    weights: float [m], how often each counts; None: once.

    Source: Zadrozny and Elkan (2002).
    """
    # Imported here because only training needs it. scikit-learn's takes two seconds more to import.
    from scipy.optimize import isotonic_regression

    counts = np.ones(len(scores)) if weights is None else weights
    kept = counts > 0
    places, entry = np.unique(np.asarray(scores, np.float64)[kept], return_inverse=True)
    counted = np.bincount(entry, counts[kept])
    means = np.bincount(entry, (counts * labels)[kept]) / counted
    values = isotonic_regression(means, weights=counted).x.clip(0, 1)
    steps = np.diff(values) != 0
    ends = np.append(True, steps) | np.append(steps, True)  # of each level
    # Rounding may leave the values unsorted in the last bit.
    return np.maximum.accumulate(np.stack([places, values])[:, ends], axis=1)


def threshold_of_precision(
    probabilities: np.ndarray, precision: float, weights: np.ndarray | None = None
) -> float:
    """Return the lowest threshold at which the mean probability is at least `precision`.

    The mean is over the pairs with at least the threshold, each counted `weights` times (once), and
    is the precision that the calibration expects of them. UserError if no threshold has it.

    Args:
      probabilities, weights: float64 [P].
    """
    order = np.argsort(-probabilities, kind="stable")
    ordered = probabilities[order]
    counts = np.ones(len(order)) if weights is None else weights[order]
    # Pairs of one probability are found together, so only the last of them is a threshold.
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(order) else order
    means = np.cumsum(ordered * counts)[last] / np.cumsum(counts)[last]
    good = np.flatnonzero(means >= precision)
    if not len(good):
        best = f"at most {means.max():.4f}" if len(means) else "no pairs"
        raise UserError(
            f"expected pairs with a mean probability of {precision:g}, got {best}",
            setting="precision",
            remedy="lower the precision",
        )
    return float(ordered[last[good[-1]]])


def without_curves(facts: Any) -> Any:
    """Leave the reliability curves, long lists, out of facts."""
    if not isinstance(facts, dict):
        return facts
    return {name: without_curves(value) for name, value in facts.items() if name != "curve"}
