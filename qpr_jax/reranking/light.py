"""The light re-ranker: a small network over features of a query and a hit, and its folder.

The folder has a manifest and a safetensors file, and no code. It is a sub-folder of the folder of
its encoder, since the distance is one of its features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qpr_jax.encoders.base import Encoder, serialize_tensors
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.machine import compile_loop
from qpr_jax.reranking.base import Reranker, find_copies, owners_of, pair_texts
from qpr_jax.reranking.features import FEATURES, FeatureExtractor, zero_weights
from qpr_jax.reranking.model_folder import (
    REMEDY,
    check_array,
    read_model,
    write_model,
)
from qpr_jax.reranking.terms import Frequencies

if TYPE_CHECKING:
    from qpr_jax.reranking.cross_encoder import CrossEncoder

FORMAT = "qpr_jax reranker 1"
LIGHT, STACKED = "reranker", "reranker_cross"  # sub-folders of an encoder's folder
WEIGHTS = "reranker.safetensors"
CROSS = "cross"  # the last feature of a stacked model: the logit of a cross-encoder
MAX_CANDIDATES = 1000
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
    """A trained re-ranker.

    Attributes:
      encoder: the identity of the encoder whose distances it was trained on.
      candidates: the number of first-stage hits that it reorders.
      network: from features to the raw score.
      frequencies: of the terms of the questions that it was trained with.
      word_weights: float32 [2 ** BITS], see the module `word_weights`.
      cross_encoder: the identity of the cross-encoder whose logit is its last feature, or "".
      settings: facts of its training, for users.
    """

    encoder: str
    candidates: int
    network: Network
    frequencies: Frequencies
    word_weights: np.ndarray = field(default_factory=zero_weights)
    cross_encoder: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

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

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Compute the raw scores of rows of features, float32 [m, f]: float64 [m]."""
        return predict(self.network, features)


def save_light(folder: StrPath, model: LightModel) -> None:
    """Write a model; replaces the folder as a whole."""
    facts = {name: getattr(model, name) for name in _FACTS}
    write_model(folder, WEIGHTS, _tensors(model), format=FORMAT, facts=facts)


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
        raise UserError(
            f"{folder}: expected the {len(features)} features of this version, got others",
            remedy="train the re-ranker again with this version",
        )
    if not 1 <= manifest["candidates"] <= MAX_CANDIDATES:
        what = f"expected 1 to {MAX_CANDIDATES} candidates, got {manifest['candidates']}"
        raise UserError(f"{folder}: {what}", remedy=REMEDY)
    f, h = len(features), tensors["bias"].size if "bias" in tensors else 0
    shapes = ((f,), (f,), (f, h), (h,), (h,), (f,))
    arrays = [
        check_array(tensors.get(name), name, np.float32, shape, where)
        for name, shape in zip(Network._fields, shapes, strict=True)
    ]
    weights, size = tensors.get("word_weights"), zero_weights().shape
    return LightModel(
        manifest["encoder"],
        manifest["candidates"],
        Network(*arrays),
        Frequencies.from_tensors(tensors, where),
        check_array(weights, "word_weights", np.float32, size, where),
        manifest["cross_encoder"],
        manifest["settings"],
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
    ) -> None:
        """Use the encoder, and the cross-encoder, of the model's training.

        metric: of the distances of the hits; "ip" only for vectors of length 1.
        """
        self.model, self.scorer = model, scorer
        self.candidates, self.features = model.candidates, model.features
        self._products = metric == "ip"
        self.extractor = FeatureExtractor(encoder, model.frequencies, model.word_weights)

    def score(
        self,
        queries: Sequence[str],
        questions: Sequence[str],
        distances: np.ndarray,
        starts: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute features and raw scores; see `Reranker`."""
        squares = 2 + 2 * distances if self._products else distances
        copies = find_copies(queries, questions, starts)
        if copies.any():
            # They form separate lists, so that they do not change gaps and ranks of the other hits:
            # training, too, leaves a query out of its own hits.
            lists = 2 * owners_of(starts) + copies
            order = np.argsort(lists, kind="stable")
            bounds = np.searchsorted(lists[order], np.arange(2 * len(queries) + 1))
            texts = [questions[i] for i in order.tolist()]
            twice = [query for query in queries for _ in range(2)]
            features = np.empty((len(questions), len(FEATURES)), np.float32)
            features[order] = self.extractor.compute(twice, texts, squares[order], bounds)
        else:
            features = self.extractor.compute(queries, questions, squares, starts)
        if self.scorer is not None:
            pairs = pair_texts(queries, questions, starts)
            features = np.column_stack([features, self.scorer.predict(pairs)])
        return features, self.model.scores(features)
