"""Cross-encoders: folders in the format of sentence-transformers, and the scores of pairs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qpr_jax.encoders.base import parse_tensors
from qpr_jax.encoders.sentence_transformers import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    named_tensors,
    parse_shape,
    parse_weights,
    serialize_tensors,
)
from qpr_jax.encoders.transformer_encoder import TransformerEncoder, length_blocks, prefetch
from qpr_jax.errors import UserError
from qpr_jax.files import (
    StrPath,
    manifest_format,
    parse_json,
    read_manifest,
    read_verified,
    replace_folder,
    write_atomically,
    write_manifest,
)
from qpr_jax.models.bert_shape import BertShape
from qpr_jax.text.word_pieces import PairPieces

if TYPE_CHECKING:
    from qpr_jax.encoders.transformer_runtime import Runtime

FORMAT = "qpr_jax cross-encoder 1"
TOKENIZER_CONFIG = "tokenizer_config.json"
LENGTH_CONFIG = "sentence_bert_config.json"  # of sentence-transformers 5.4 and later
MODEL_CONFIG = "config_sentence_transformers.json"
CALIBRATION = "calibration.json"  # our own; sentence-transformers ignores it
ARCHITECTURE = "BertForSequenceClassification"
# What turns a logit into a score, by the class that a folder names.
ACTIVATIONS = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
}
_OPTIONAL = (TOKENIZER_CONFIG, LENGTH_CONFIG, MODEL_CONFIG, CALIBRATION)
_POOLER, _CLASSIFIER = "bert.pooler.dense", "classifier"


@dataclass(frozen=True, eq=False)
class CrossEncoder:
    """Scores pairs of questions; JAX is loaded with the first pair. Safe to use from threads.

    Attributes:
      shape: of the BERT.
      max_tokens: of a pair, including its markers.
      weights: parameters of `models.cross_encoder.PairScorer`, pure nested dictionaries.
      activation: what turns a logit into a score for people: one of `ACTIVATIONS.values()`.
      contents: files of the folder by name, without weights and calibration.
      calibration: float64 [2, c], logits and the probabilities that they mean, both ascending; None
        where unknown.
      settings: of its training, flat; empty if it was trained elsewhere.
    """

    shape: BertShape
    max_tokens: int
    weights: dict[str, Any]
    activation: str
    contents: dict[str, bytes]
    calibration: np.ndarray | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def identity(self) -> str:
        """Hash of what the logits are computed with."""
        parts = [FORMAT.encode(), self.contents[TOKENIZER], str(self.max_tokens).encode()]
        parts.append(json.dumps(dataclasses.asdict(self.shape)).encode())
        parts.append(self.weights_file)
        hashes = [hashlib.sha256(part).hexdigest() for part in parts]
        return hashlib.sha256("".join(hashes).encode()).hexdigest()

    @functools.cached_property
    def weights_file(self) -> bytes:
        """The contents of its `model.safetensors`."""
        tensors = {f"bert.{name}": array for name, array in named_tensors(self.weights).items()}
        for part, name in (("pooler", _POOLER), ("classifier", _CLASSIFIER)):
            tensors[f"{name}.weight"] = self.weights[part]["kernel"].T
            tensors[f"{name}.bias"] = self.weights[part]["bias"]
        return serialize_tensors(tensors)

    @functools.cached_property
    def tokenizer(self) -> PairPieces:
        """From pairs to token ids."""
        return PairPieces(self.contents[TOKENIZER], self.max_tokens)

    def predict(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Score pairs: float32 [n], logits, in the order of the pairs."""
        ids, segments = self.tokenizer.id_lists(pairs)
        logits = np.empty(len(ids), np.float32)
        if not len(ids):
            return logits
        runtime = self._runtime

        def results() -> Any:
            tokens = runtime.device_tokens
            for rows, block in length_blocks(ids, self.max_tokens, tokens, runtime.devices):
                types = np.zeros_like(block)
                for at, row in enumerate(rows):
                    types[at, : len(segments[row])] = segments[row]
                yield rows, runtime.encode(block, types)

        for rows, scored in prefetch(results()):
            logits[rows] = np.asarray(scored)[: len(rows)]
        return logits

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """The scores of logits by the folder's activation, float32 [n]."""
        if self.activation == "identity":
            return logits
        return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)

    def probabilities(self, logits: np.ndarray) -> np.ndarray | None:
        """The probability of one meaning, float64 [n], by the calibration; None without one."""
        return None if self.calibration is None else np.interp(logits, *self.calibration)

    @functools.cached_property
    def _runtime(self) -> Runtime:
        from qpr_jax.encoders.transformer_runtime import compile_layers
        from qpr_jax.models.cross_encoder import PairScorer

        return compile_layers(self.shape, self.weights, "float32", model=PairScorer)


def read_cross_encoder(folder: StrPath) -> CrossEncoder:
    """Read a folder, verified if `save_cross_encoder` wrote it.

    UserError for another architecture, for more outputs than one, for weights in another format
    than safetensors, and for an activation that is not one of `ACTIVATIONS`.
    """
    path = pathlib.Path(folder)
    for name in (CONFIG, TOKENIZER, WEIGHTS):
        if not (path / name).is_file():
            raise UserError(
                f"{path}: expected a cross-encoder with {CONFIG}, {TOKENIZER} and {WEIGHTS}, "
                f"found no {name}",
                remedy="fetch the whole folder, with its weights in safetensors",
            )
    names = [CONFIG, TOKENIZER, WEIGHTS, *(n for n in _OPTIONAL if (path / n).is_file())]
    settings: dict[str, Any] = {}
    if manifest_format(path) == FORMAT:
        manifest = read_manifest(path, format=FORMAT)
        files = {name: read_verified(path, name, manifest) for name in names}
        settings = manifest.get("settings", {})
    else:
        files = {name: (path / name).read_bytes() for name in names}
    shape = _parse_shape(files, path)
    tensors = parse_tensors(files.pop(WEIGHTS), f"{path}: {WEIGHTS}")
    calibration = files.pop(CALIBRATION, None)
    return CrossEncoder(
        shape=shape,
        max_tokens=_max_tokens(files, shape, path),
        weights=parse_weights(tensors, shape, path) | _parse_head(tensors, shape, path),
        activation=_parse_activation(files, path),
        contents=files,
        calibration=None if calibration is None else _parse_calibration(calibration, path),
        settings=settings,
    )


def cross_encoder_folder(named: StrPath) -> pathlib.Path | None:
    """The folder of a cross-encoder: `named` itself, or `export/` of a run; None if it is none."""
    for folder in (pathlib.Path(named), pathlib.Path(named, "export")):
        if (folder / CONFIG).is_file():
            config = parse_json((folder / CONFIG).read_bytes(), folder / CONFIG)
            if isinstance(config, dict) and config.get("architectures") == [ARCHITECTURE]:
                return folder
    return None


def calibrate(logits: np.ndarray, same: np.ndarray) -> np.ndarray:
    """The isotonic map from logits to the probability of one meaning, float64 [2, c].

    Args:
      logits: float [n].
      same: bool [n], whether the pair has one meaning.

    Source: Zadrozny and Elkan (2002).
    """
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression(y_min=0, y_max=1).fit(logits, same)
    return np.stack([fitted.X_thresholds_, fitted.y_thresholds_]).astype(np.float64)


def save_cross_encoder(folder: StrPath, model: CrossEncoder) -> None:
    """Write a folder that sentence-transformers reads too; it is replaced as a whole."""
    files = model.contents | {WEIGHTS: model.weights_file}
    if model.calibration is not None:
        logits, probabilities = model.calibration.tolist()
        known = {"logits": logits, "probabilities": probabilities}
        files[CALIBRATION] = json.dumps(known).encode() + b"\n"
    with replace_folder(folder) as part:
        for name, data in files.items():
            with write_atomically(part / name) as file:
                file.write(data)
        write_manifest(part, list(files), format=FORMAT, settings=model.settings)


def from_encoder(encoder: TransformerEncoder, *, max_tokens: int, seed: int) -> CrossEncoder:
    """A cross-encoder before its training: the BERT of an encoder, and an output drawn at random.

    The pooler is the encoder's where its file holds one; else it is drawn too.
    """
    shape, name = encoder.model.shape, "encoder"
    tensors = parse_tensors(encoder.contents[WEIGHTS], name)
    rng = np.random.default_rng(seed)
    size = shape.hidden_size
    drawn = {
        f"{_POOLER}.weight": rng.normal(0, 0.02, (size, size)),
        f"{_POOLER}.bias": np.zeros(size),
        f"{_CLASSIFIER}.weight": rng.normal(0, 0.02, (1, size)),
        f"{_CLASSIFIER}.bias": np.zeros(1),
    }
    known = {f"bert.{name}": array for name, array in tensors.items()} | tensors
    head = {name: known.get(name, array) for name, array in drawn.items()}
    config = parse_json(encoder.contents[CONFIG], f"{name}: {CONFIG}")
    sigmoid = next(iter(ACTIVATIONS))
    config |= {
        "architectures": [ARCHITECTURE],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "sentence_transformers": {"activation_fn": sigmoid},
        "sbert_ce_default_activation_function": sigmoid,  # for versions before 4
    }
    known_of_tokenizer = json.loads(encoder.contents.get(TOKENIZER_CONFIG, b"{}"))
    limit = min(max_tokens, shape.max_position_embeddings)
    contents = {
        CONFIG: _json(config),
        TOKENIZER: encoder.contents[TOKENIZER],
        TOKENIZER_CONFIG: _json(known_of_tokenizer | {"model_max_length": limit}),
    }
    weights = encoder.model.weights | _parse_head(head, shape, name)
    return CrossEncoder(shape, limit, weights, ACTIVATIONS[sigmoid], contents)


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def _object(files: Mapping[str, bytes], name: str, where: StrPath) -> dict[str, Any]:
    value = parse_json(files.get(name, b"{}"), f"{where}: {name}")
    if not isinstance(value, dict):
        raise UserError(f"{where}: {name}: expected a JSON object, got {type(value).__name__}")
    return value


def _parse_shape(files: Mapping[str, bytes], where: StrPath) -> BertShape:
    config = _object(files, CONFIG, where)
    architectures = config.get("architectures")
    if architectures != [ARCHITECTURE]:
        raise UserError(
            f"{where}: {CONFIG}: expected a cross-encoder of the architecture {ARCHITECTURE}, got "
            f"{', '.join(map(str, architectures)) if isinstance(architectures, list) else None}"
        )
    labels = config.get("id2label", {"0": "", "1": ""})  # two are the default of transformers
    count = len(labels) if isinstance(labels, dict) else config.get("num_labels")
    if count != 1:
        raise UserError(f"{where}: {CONFIG}: expected a model with one output, got {count}")
    return parse_shape(config, where)


def _parse_activation(files: Mapping[str, bytes], where: StrPath) -> str:
    """As sentence-transformers looks for it: the newest place first, a sigmoid by default."""
    config = _object(files, CONFIG, where)
    new = config.get("sentence_transformers")
    places = (
        _object(files, MODEL_CONFIG, where).get("activation_fn"),
        new.get("activation_fn") if isinstance(new, dict) else None,
        config.get("sbert_ce_default_activation_function"),
        next(iter(ACTIVATIONS)),
    )
    named = next(place for place in places if place is not None)
    if named not in ACTIVATIONS:
        raise UserError(
            f"{where}: expected one of the activations {', '.join(ACTIVATIONS)}, got {named!r}"
        )
    return ACTIVATIONS[named]


def _max_tokens(files: Mapping[str, bytes], shape: BertShape, where: StrPath) -> int:
    limits = (
        _object(files, LENGTH_CONFIG, where).get("max_seq_length"),
        _object(files, TOKENIZER_CONFIG, where).get("model_max_length"),
    )
    limit = next((n for n in limits if n), shape.max_position_embeddings)
    if not isinstance(limit, int | float) or isinstance(limit, bool) or limit < 3:
        raise UserError(f"{where}: expected room for 3 tokens or more, got {limit!r}")
    return int(min(limit, shape.max_position_embeddings))


def _parse_head(
    tensors: Mapping[str, np.ndarray], shape: BertShape, where: StrPath
) -> dict[str, Any]:
    """The parameters after the layers: the pooler and the classifier."""
    size, head = shape.hidden_size, {}
    for part, name, outputs in (("pooler", _POOLER, size), ("classifier", _CLASSIFIER, 1)):
        kernel, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
        if kernel is None or bias is None:
            raise UserError(f"{where}: expected the tensors {name}.weight and .bias, found none")
        if kernel.shape != (outputs, size) or bias.shape != (outputs,):
            raise UserError(
                f"{where}: {name}: expected {[outputs, size]} and {[outputs]}, got "
                f"{list(kernel.shape)} and {list(bias.shape)}"
            )
        head[part] = {"kernel": np.float32(kernel).T, "bias": np.float32(bias)}
    return head


def _parse_calibration(data: bytes, where: StrPath) -> np.ndarray:
    known = parse_json(data, f"{where}: {CALIBRATION}")
    try:
        points = np.array([known["logits"], known["probabilities"]], np.float64)
    except (TypeError, KeyError, ValueError):
        points = np.zeros((0, 0))
    ascending = points.ndim == 2 and points.shape[1] > 0 and (np.diff(points) >= 0).all()
    if not ascending or not np.isfinite(points).all():
        raise UserError(
            f"{where}: {CALIBRATION}: expected ascending `logits` and `probabilities` of one length"
        )
    return points
