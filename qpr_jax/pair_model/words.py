"""The words model: one logit of two texts, from their distance and how their words differ.

The logit orders the hits of a search, and its sigmoid is their score. A small network computes it
from features of the two texts. The folder has a manifest and a safetensors file; it lies in the
folder of its encoder.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.encoders.encoder import Encoder, parse_tensors, serialize_tensors
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, read_manifest, read_verified, write_folder
from qpr_jax.pair_model.features import FeatureExtractor, zero_weights
from qpr_jax.pair_model.terms import BUCKETS, MAX_WORDS, TENSORS, Frequencies
from qpr_jax.running import compile_loop

FORMAT = "qpr_jax pair model words 1"
WEIGHTS = "pair_model.safetensors"
REMEDY = "train or fetch the model again"
MAX_DEPTH = 1000
HIGHEST, LOWEST = 50.0, -50.0  # the logits of equal texts, and of texts beyond the reach
FEATURES = 33  # of a pair: the distance, its square, and `features.FEATURES`
WORD_WEIGHTS = 12  # the column of the sum of the weights of words
_CLIP = 4.0  # in standard deviations: standardized features are clipped to it
_FACTS = {"encoder": str, "depth": int, "farthest": float, "settings": dict}


def pair_features(distances: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Join squared distances [m] and what `FeatureExtractor` found: float32 [m, FEATURES]."""
    squares = np.maximum(np.asarray(distances, np.float32), 0)[:, None]
    return np.hstack([np.sqrt(squares), squares, found])


class Network(NamedTuple):
    """logit = shift + linear @ z + output @ relu(z @ hidden + bias).

    z = clip((features - mean) * scale); all are float32.
    """

    mean: np.ndarray  # [FEATURES]
    scale: np.ndarray  # [FEATURES]
    hidden: np.ndarray  # [FEATURES, h]
    bias: np.ndarray  # [h]
    output: np.ndarray  # [h]
    linear: np.ndarray  # [FEATURES]
    shift: np.ndarray  # [1]

    def standardize(self, features: np.ndarray) -> np.ndarray:
        """Compute z of features [m, FEATURES]."""
        return ((features - self.mean) * self.scale).clip(-_CLIP, _CLIP)

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Compute logits, float64 [m], of features float32 [m, FEATURES]."""
        logits = np.empty(len(features))
        total = np.empty(len(self.bias), np.float32)
        _predict(tuple(self), np.ascontiguousarray(features, np.float32), total, logits)
        return logits.clip(LOWEST, HIGHEST)


@compile_loop(fastmath={"contract"})
def _predict(network, features, total, logits):  # type: ignore[no-untyped-def]
    """Write the logits; the bits of a row's do not depend on the other rows."""
    mean, scale, hidden, bias, output, linear, shift = network
    width, units = hidden.shape
    clip = np.float32(_CLIP)
    for row in range(len(features)):
        logit = np.float64(shift[0])
        for i in range(units):
            total[i] = bias[i]
        for f in range(width):
            z = (features[row, f] - mean[f]) * scale[f]
            z = min(max(z, -clip), clip)
            logit += np.float64(linear[f]) * z
            weights = hidden[f]
            for i in range(units):
                total[i] += z * weights[i]
        for i in range(units):
            logit += np.float64(output[i]) * max(total[i], np.float32(0))
        logits[row] = logit


@dataclass(frozen=True, eq=False)
class WordsModel:
    """A network over features of a pair of texts, learned from labels. Thread-safe."""

    encoder: str  # the fingerprint of the encoder that gives the distances
    depth: int  # hits of a search that it reorders
    farthest: float  # the squared distance beyond which two texts have the score 0
    network: Network
    frequencies: Frequencies  # of the terms of the questions that it was trained with
    embeddings: Encoder = field(repr=False)  # the encoder, which has embeddings of words
    word_weights: np.ndarray = field(default_factory=zero_weights, repr=False)
    settings: dict[str, Any] = field(default_factory=dict)  # facts of its fit

    @functools.cached_property
    def extractor(self) -> FeatureExtractor:
        """What computes features of words; made at first use, since it takes a while."""
        return FeatureExtractor(self.embeddings, self.frequencies, self.word_weights)

    def rescaled(self, slope: float, shift: float, settings: dict[str, Any]) -> WordsModel:
        """Return a model whose logits are slope times these, plus shift."""
        linear, output = (slope * part for part in (self.network.linear, self.network.output))
        moved = np.array([slope * self.network.shift[0] + shift], np.float32)
        network = self.network._replace(
            linear=linear.astype(np.float32), output=output.astype(np.float32), shift=moved
        )
        return dataclasses.replace(self, network=network, settings=self.settings | settings)

    def spreads(self, neighbor_distances: np.ndarray) -> np.ndarray:
        """Return zeros, float64 [n]: it does not read how dense a table is."""
        return np.zeros(len(neighbor_distances))

    def without_words(self, distances: np.ndarray, spreads: np.ndarray) -> np.ndarray:
        """Return the largest logits that pairs of these squared distances may have: float64 [m]."""
        return np.where(distances > self.farthest, LOWEST, HIGHEST)

    def reach(self, threshold: float, spreads: np.ndarray) -> float:
        """Return the largest squared distance at which two texts may have a score."""
        return self.farthest

    def logits(
        self,
        first: Sequence[str],
        second: Sequence[str],
        distances: np.ndarray,
        spreads: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute the logits of pairs of texts, float64 [m]; their order does not matter.

        The logit of a pair does not depend on the other pairs.

        Args:
          first, second: m texts each; the words of a text that is repeated are read once.
          distances: of their vectors, squared, float [m].
          spreads: ignored.
        """
        found = self.extractor.compute(first, second)
        logits = self.network.logits(pair_features(distances, found))
        logits[distances > self.farthest] = LOWEST
        return logits


def save_words(folder: StrPath, model: WordsModel) -> None:
    """Write a model; replaces the folder as a whole."""
    tensors = model.network._asdict() | model.frequencies.tensors()
    tensors |= {"word_weights": model.word_weights}
    facts = {name: getattr(model, name) for name in _FACTS}
    write_folder(folder, {WEIGHTS: serialize_tensors(tensors)}, format=FORMAT, **facts)


def read_words(folder: StrPath, encoder: Encoder) -> WordsModel:
    """Read and verify the model of an encoder; UserError if it is damaged."""
    manifest = read_manifest(folder, format=FORMAT)
    for name, kind in _FACTS.items():
        if type(manifest.get(name)) is not kind:
            what = f"expected {kind.__name__} as `{name}`, got {manifest.get(name)!r:.80}"
            raise UserError(f"{folder}: {what}", remedy=REMEDY)
    if not 0 <= manifest["depth"] <= MAX_DEPTH:
        what = f"{folder}: expected a depth of 0 to {MAX_DEPTH}, got {manifest['depth']}"
        raise UserError(what, remedy=REMEDY)
    where = f"{folder}: {WEIGHTS}"
    tensors = parse_tensors(read_verified(folder, WEIGHTS, manifest), where)
    f, h = FEATURES, tensors["bias"].size if "bias" in tensors else 0
    shapes = ((f,), (f,), (f, h), (h,), (h,), (f,), (1,))
    network = Network(
        *(
            _checked(tensors, name, np.float32, shape, where)
            for name, shape in zip(Network._fields, shapes, strict=True)
        )
    )
    kinds = ((np.uint8, (BUCKETS,)), (np.int64, (1,)), (np.float64, (1,)))
    codes, documents, mean_length = (
        _checked(tensors, name, *kind, where) for name, kind in zip(TENSORS, kinds, strict=True)
    )
    if documents[0] < 0 or not 1 <= mean_length[0] <= MAX_WORDS:
        what = f"{where}: the number of documents or their mean length is out of range"
        raise UserError(what, remedy=REMEDY)
    return WordsModel(
        **{name: manifest[name] for name in _FACTS},
        network=network,
        frequencies=Frequencies(codes, int(documents[0]), float(mean_length[0])),
        word_weights=_checked(tensors, "word_weights", np.float32, zero_weights().shape, where),
        embeddings=encoder,
    )


def _checked(
    arrays: dict[str, np.ndarray], name: str, dtype: Any, shape: tuple[int, ...], where: str
) -> np.ndarray:
    """Return an array; UserError unless it has this type and shape, and finite numbers."""
    array = arrays.get(name)
    if array is None or array.dtype != dtype or array.shape != shape:
        got = "none" if array is None else f"{array.dtype} {list(array.shape)}"
        what = f"{where}: expected `{name}`, {np.dtype(dtype)} {list(shape)}, got {got}"
        raise UserError(what, remedy=REMEDY)
    if not np.isfinite(array).all():
        raise UserError(f"{where}: `{name}` has numbers that are not finite", remedy=REMEDY)
    return array
