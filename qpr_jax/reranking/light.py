"""The light re-ranker: a small network over features of a query and a hit, and its folder.

The folder has a manifest and a safetensors file, and no code. It is a sub-folder of the folder of
its encoder, since the distance is one of its features.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qpr_jax.encoders.base import Encoder, serialize_tensors
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, write_folder
from qpr_jax.machine import compile_loop
from qpr_jax.reranking.base import Reranker, TextLists, owners_of
from qpr_jax.reranking.calibration import PairCalibration
from qpr_jax.reranking.features import FEATURES, FeatureExtractor, zero_weights
from qpr_jax.reranking.model_folder import REMEDY, check_array, read_model
from qpr_jax.reranking.pairs import pair_features
from qpr_jax.reranking.terms import Frequencies

if TYPE_CHECKING:
    from qpr_jax.reranking.cross_encoder import CrossEncoder

FORMAT = "qpr_jax reranker 1"
LIGHT, STACKED = "reranker", "reranker_cross"  # sub-folders of an encoder's folder
WEIGHTS = "reranker.safetensors"
CROSS = "cross"  # the last feature of a stacked model: the logit of a cross-encoder
MAX_CANDIDATES = 1000
_LEAST_LOGIT = np.log(0.01 / 0.99)  # lower ones tell hits apart no more
CLIP = 4.0  # in standard deviations: standardized features are clipped to it
# Fields of a model in its manifest, and their types in JSON.
_FACTS = {
    "encoder": str,
    "candidates": int,
    "cross_encoder": str,
    "features": list,
    "settings": dict,
}


class Network(NamedTuple):
    """score = linear @ z + output @ relu(z @ hidden + bias), z = clip((features - mean) * scale).

    All are float32.
    """

    mean: np.ndarray  # [f]
    scale: np.ndarray  # [f]
    hidden: np.ndarray  # [f, h]
    bias: np.ndarray  # [h]
    output: np.ndarray  # [h]
    linear: np.ndarray  # [f]


def predict(network: Network, features: np.ndarray) -> np.ndarray:
    """Compute the score of each row of features, float32 [m, f]: float64 [m]."""
    scores = np.empty(len(features), np.float64)
    _predict(tuple(network), np.ascontiguousarray(features, np.float32), scores)
    return scores


def standardize(network: Network, features: Any) -> Any:
    """Compute z (see `Network`) of a NumPy or JAX array [..., f]."""
    return ((features - network.mean) * network.scale).clip(-CLIP, CLIP)


@compile_loop(fastmath={"contract"})
def _predict(network, features, scores):  # type: ignore[no-untyped-def]
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


@dataclass(frozen=True)
class LightModel:
    """A trained re-ranker."""

    encoder: str  # identity of the encoder that gives the distances
    candidates: int  # the number of first-stage hits that it reorders; 0: scores alone read it
    network: Network  # from features to the raw score
    frequencies: Frequencies  # of the terms of the questions that it was trained with
    word_weights: np.ndarray = field(default_factory=zero_weights)  # float32 [2 ** BITS]
    cross_encoder: str = ""  # the identity of the one whose logit is the last feature, or ""
    settings: dict[str, Any] = field(default_factory=dict)  # facts of its training, for users

    def __repr__(self) -> str:
        kind = "stacked on a cross-encoder" if self.cross_encoder else "light"
        return f"<LightModel: {kind}, reorders {self.candidates} hits>"

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns that the network reads."""
        return (*FEATURES, CROSS) if self.cross_encoder else FEATURES

    @property
    def identity(self) -> str:
        """Hash of what its raw scores depend on."""
        name = f"{self.encoder} {self.candidates} {self.cross_encoder}"
        return hashlib.sha256(name.encode() + serialize_tensors(_tensors(self))).hexdigest()


def save_light(folder: StrPath, model: LightModel) -> None:
    """Write a model; replaces the folder as a whole."""
    facts = {name: getattr(model, name) for name in _FACTS}
    write_folder(folder, {WEIGHTS: serialize_tensors(_tensors(model))}, format=FORMAT, **facts)


def _tensors(model: LightModel) -> dict[str, np.ndarray]:
    tensors = {**model.network._asdict(), **model.frequencies.tensors()}
    return tensors | {"word_weights": model.word_weights}


def read_light(folder: StrPath) -> LightModel:
    """Read and verify a model; UserError if it is damaged or of another version."""
    manifest, tensors = read_model(folder, WEIGHTS, format=FORMAT, facts=_FACTS)
    where, features = f"{folder}: {WEIGHTS}", [*FEATURES]
    if manifest["cross_encoder"]:
        features.append(CROSS)
    if manifest["features"] != features:
        what = f"{folder}: expected the {len(features)} features of this version, got others"
        raise UserError(what, remedy="train the re-ranker again with this version")
    if not 0 <= manifest["candidates"] <= MAX_CANDIDATES:
        what = f"expected 0 to {MAX_CANDIDATES} candidates, got {manifest['candidates']}"
        raise UserError(f"{folder}: {what}", remedy=REMEDY)
    f, h = len(features), tensors["bias"].size if "bias" in tensors else 0
    shapes = ((f,), (f,), (f, h), (h,), (h,), (f,))
    arrays = {
        name: check_array(tensors, name, np.float32, shape, where)
        for name, shape in zip(Network._fields, shapes, strict=True)
    }
    return LightModel(
        network=Network(**arrays),
        frequencies=Frequencies.from_tensors(tensors, where),
        word_weights=check_array(tensors, "word_weights", np.float32, zero_weights().shape, where),
        **{name: manifest[name] for name in _FACTS if name != "features"},
    )


class LightReranker(Reranker):
    """Reorders by a `LightModel`; a stacked model needs its cross-encoder, `scorer`."""

    def __init__(
        self,
        model: LightModel,
        encoder: Encoder,
        *,
        metric: str = "l2",
        scorer: CrossEncoder | None = None,
        calibration: PairCalibration | None = None,
    ) -> None:
        """Use the encoder, and the cross-encoder, of the model's training.

        metric: of the distances of the hits; "ip" only for vectors of length 1.
        calibration: of this model; its `order` says how much of its logit is added to the scores.
        """
        self.model, self.scorer, self._calibration = model, scorer, calibration
        self.candidates, self.features = model.candidates, model.features
        self._products = metric == "ip"
        self.extractor = FeatureExtractor(encoder, model.frequencies, model.word_weights)

    def score(self, lists: TextLists) -> tuple[np.ndarray, np.ndarray]:
        """Compute features and raw scores; see `Reranker`."""
        if self._products:
            lists = lists._replace(distances=2 + 2 * lists.distances)
        copies = lists.copies()
        if copies.any():
            # They form separate lists, so that they do not change gaps and ranks of the other hits:
            # training, too, leaves a query out of its own hits.
            numbers = 2 * owners_of(lists.starts) + copies
            order = np.argsort(numbers, kind="stable")
            divided = TextLists(
                [query for query in lists.queries for _ in range(2)],
                [lists.questions[i] for i in order.tolist()],
                lists.distances[order],
                np.searchsorted(numbers[order], np.arange(2 * len(lists.queries) + 1)),
            )
            features = np.empty((len(order), len(FEATURES)), np.float32)
            features[order] = self.extractor.compute(divided)
        else:
            features = self.extractor.compute(lists)
        if self.scorer is not None:
            features = np.column_stack([features, self.scorer.predict(lists.pairs())])
        scores = predict(self.model.network, features)
        if (fitted := self._calibration) and fitted.order:
            logits = fitted.logits(pair_features(lists.distances, features))
            # Rounded, so that equal texts stay equal.
            scores += fitted.order * np.maximum(logits.round(6), _LEAST_LOGIT)
        return features, scores
