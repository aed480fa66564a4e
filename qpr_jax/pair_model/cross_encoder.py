"""Cross-encoders: they score pairs of questions, and reorder hits by these scores.

The files of a cross-encoder's folder, as sentence-transformers reads and writes them."""

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

from qpr_jax.encoders.encoder import parse_tensors, serialize_tensors
from qpr_jax.encoders.sentence_transformers import (
    CONFIG,
    LENGTHS,
    MODULES,
    TOKENIZER,
    WEIGHTS,
    named_tensors,
    parse_limit,
    parse_modules,
    parse_object,
    parse_shape,
    parse_weights,
    read_files,
)
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.errors import UserError, needs
from qpr_jax.files import StrPath, parse_json, write_folder
from qpr_jax.models import BertShape
from qpr_jax.text.tokenizer import PairPieces

if TYPE_CHECKING:
    from qpr_jax.models.bert import Runtime

FORMAT = "qpr_jax cross-encoder 1"
_LEAST = 1e-6  # probabilities are cut off here and at 1 - _LEAST
TOKENIZER_CONFIG = "tokenizer_config.json"
MODEL_CONFIG = "config_sentence_transformers.json"  # of sentence-transformers 5.4 and later
CALIBRATION = "calibration.json"  # our own; sentence-transformers ignores it
ARCHITECTURE = "BertForSequenceClassification"
_SIGMOID = "torch.nn.modules.activation.Sigmoid"  # from logit to score
# The two linear layers after the BERT layers, and the names of their tensors.
HEAD = {"pooler": "bert.pooler.dense", "classifier": "classifier"}
OPTIONAL = (*(name for name, _ in LENGTHS), MODEL_CONFIG, MODULES, CALIBRATION)


@dataclass(frozen=True, eq=False)
class CrossEncoder:
    """Scores pairs of questions; loads JAX at the first pair. Thread-safe.

    calibration: float64 [2, c], logits and their probabilities, both ascending; None if unknown.
    settings: those of its training, flat; empty if it was trained elsewhere.
    """

    shape: BertShape  # the sizes of the BERT
    max_tokens: int  # the largest length of a pair, including special tokens
    weights: dict[str, Any]  # of `models.bert.PairScorer`, nested dictionaries of arrays
    contents: dict[str, bytes]  # the files of the folder by name, without weights and calibration
    calibration: np.ndarray | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    depth: int = 20  # hits of a search that it orders

    def __repr__(self) -> str:
        calibrated = "calibrated" if self.calibration is not None else "not calibrated"
        layers = self.shape.num_hidden_layers
        return f"<CrossEncoder: {layers} layers, reads {self.max_tokens} tokens, {calibrated}>"

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the weights, tokenizer and sizes, on which the logits depend."""
        sizes = json.dumps([dataclasses.asdict(self.shape), self.max_tokens]).encode()
        parts = (FORMAT.encode(), sizes, self.contents[TOKENIZER], self.weights_file())
        hashes = [hashlib.sha256(part).hexdigest() for part in parts]
        return hashlib.sha256("".join(hashes).encode()).hexdigest()

    def weights_file(self) -> bytes:
        """Serialize the weights as `model.safetensors`."""
        tensors = {f"bert.{name}": array for name, array in named_tensors(self.weights).items()}
        for part, name in HEAD.items():
            tensors[f"{name}.weight"] = self.weights[part]["kernel"].T
            tensors[f"{name}.bias"] = self.weights[part]["bias"]
        return serialize_tensors(tensors)

    @functools.cached_property
    def tokenizer(self) -> PairPieces:
        """The tokenizer of pairs."""
        return PairPieces(self.contents[TOKENIZER], self.max_tokens)

    def predict(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Compute the logits of n pairs, in their order: float32 [n].

        The same call repeats bits. Among other pairs, which change the shapes of the products, the
        logit of a pair is equal within 1e-5 of the largest logit.
        """
        logits = np.empty(len(pairs), np.float32)
        if len(pairs):
            ids, segments = self.tokenizer.id_lists(pairs)
            self._runtime.fill(logits, ids, self.max_tokens, segments)
        return logits

    def logits(
        self,
        first: Sequence[str],
        second: Sequence[str],
        distances: np.ndarray,
        spreads: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute the logits of pairs, float64 [m], of their probabilities if it is calibrated.

        distances, spreads: ignored; see `pair_model.hits.PairModel`.
        """
        raw = self.predict([*zip(first, second, strict=True)]).astype(np.float64)
        if (probabilities := self.probabilities(raw)) is None:
            return raw
        probabilities = np.clip(probabilities, _LEAST, 1 - _LEAST)
        # The raw logits order equal probabilities.
        return np.log(probabilities / (1 - probabilities)) + _LEAST * raw

    def probabilities(self, logits: np.ndarray) -> np.ndarray | None:
        """Calibrate logits to probabilities, float64 [n]; None without a calibration."""
        return None if self.calibration is None else np.interp(logits, *self.calibration)

    @functools.cached_property
    def _runtime(self) -> Runtime:
        with needs("a cross-encoder", ".[train]"):
            from qpr_jax.models.bert import PairScorer, Runtime

        return Runtime(self.shape, self.weights, model=PairScorer)


def read_cross_encoder(named: StrPath) -> CrossEncoder:
    """Read the cross-encoder of a folder, or of a run's `export/`.

    Files are verified if `save_cross_encoder` wrote them. Raises a UserError unless the model is a
    BERT with one output, and the weights are safetensors. No code of the folder is executed.
    """
    path = cross_encoder_folder(named) or pathlib.Path(named)
    if not (path / CONFIG).is_file():
        remedy = "name the run of one, or a folder of sentence-transformers' CrossEncoder"
        raise UserError(f"{path}: expected a cross-encoder, found no {CONFIG}", remedy=remedy)
    files, settings = read_files(path, FORMAT, OPTIONAL)
    shape, max_tokens = parse_shape_and_limit(files, path)
    tensors = parse_tensors(files.pop(WEIGHTS), f"{path}: {WEIGHTS}")
    calibration = files.pop(CALIBRATION, None)
    model = CrossEncoder(
        shape=shape,
        max_tokens=max_tokens,
        weights=parse_weights(tensors, shape, path, HEAD),
        contents=files,
        calibration=None if calibration is None else parse_calibration(calibration, path),
        settings=settings,
    )
    try:
        _ = model.tokenizer  # now, since a training asks for logits at its end alone
    except UserError as error:
        raise UserError(f"{path}: {error.what}", remedy=error.remedy) from None
    return model


def cross_encoder_folder(named: StrPath) -> pathlib.Path | None:
    """Find the folder of a cross-encoder: `named` itself, or its `export/`; None if neither is."""
    folders = (pathlib.Path(named), pathlib.Path(named, "export"))
    return next((folder for folder in folders if is_cross_encoder(folder)), None)


def save_cross_encoder(folder: StrPath, model: CrossEncoder) -> None:
    """Write a folder, as a whole, that sentence-transformers can read, too."""
    files = model.contents | {WEIGHTS: model.weights_file()}
    if model.calibration is not None:
        logits, probabilities = model.calibration.tolist()
        points = {"logits": logits, "probabilities": probabilities}
        files[CALIBRATION] = json.dumps(points).encode() + b"\n"
    write_folder(folder, files, format=FORMAT, settings=model.settings)


def from_encoder(encoder: TransformerEncoder, *, max_tokens: int, seed: int) -> CrossEncoder:
    """Make an untrained cross-encoder: the BERT of an encoder, and a random classifier.

    The pooler is that of the encoder if its file has one, else random.
    """
    shape, where = encoder.shape, "encoder"
    tensors = parse_tensors(encoder.contents[WEIGHTS], where)
    arrays = {f"bert.{name}": array for name, array in tensors.items()} | tensors
    rng = np.random.default_rng(seed)
    for name, outputs in zip(HEAD.values(), (shape.hidden_size, 1), strict=True):
        drawn = rng.normal(0, 0.02, (outputs, shape.hidden_size))
        arrays = {f"{name}.weight": drawn, f"{name}.bias": np.zeros(outputs)} | arrays
    limit = min(max_tokens, shape.max_position_embeddings)
    contents = new_files(encoder.contents, limit)
    weights = parse_weights(arrays, shape, where, HEAD)
    return CrossEncoder(shape, limit, weights, contents)


def is_cross_encoder(folder: StrPath) -> bool:
    """Whether the `config.json` of a folder names the architecture of a BERT cross-encoder."""
    path = pathlib.Path(folder, CONFIG)
    config = parse_json(path.read_bytes(), path) if path.is_file() else None
    return isinstance(config, dict) and config.get("architectures") == [ARCHITECTURE]


def new_files(encoder: Mapping[str, bytes], max_tokens: int) -> dict[str, bytes]:
    """Make the files of a cross-encoder, without weights, from those of an encoder."""
    config = parse_object(encoder, CONFIG, "encoder") | {
        "architectures": [ARCHITECTURE],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "sentence_transformers": {"activation_fn": _SIGMOID},
        "sbert_ce_default_activation_function": _SIGMOID,  # for versions before 4
    }
    limit = {"model_max_length": max_tokens}
    tokenizer = parse_object(encoder, TOKENIZER_CONFIG, "encoder") | limit
    written = ((CONFIG, config), (TOKENIZER_CONFIG, tokenizer))
    files = {name: json.dumps(value, indent=2).encode() + b"\n" for name, value in written}
    return files | {TOKENIZER: encoder[TOKENIZER]}


def parse_shape_and_limit(files: Mapping[str, bytes], where: StrPath) -> tuple[BertShape, int]:
    """Parse the sizes, and the largest length of a pair in tokens, including special tokens.

    UserError if it is no BERT cross-encoder, has several outputs, or changes the texts.
    """
    config, model = (parse_object(files, name, where) for name in (CONFIG, MODEL_CONFIG))
    if (found := config.get("architectures")) != [ARCHITECTURE]:
        named = ", ".join(map(str, found)) if isinstance(found, list) else repr(found)
        what = f"expected a cross-encoder of the architecture {ARCHITECTURE}, got {named}"
        raise UserError(f"{where}: {CONFIG}: {what}")
    labels = config.get("id2label")
    # The default of transformers is 2.
    count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
    if count != 1:
        raise UserError(f"{where}: {CONFIG}: expected a model with one output, got {count}")
    kinds = [*parse_modules(files, where)] if MODULES in files else []
    if kinds not in ([], ["Transformer"]):
        raise UserError(f"{where}: {MODULES}: expected a Transformer, got {', '.join(kinds)}")
    if (prompt := model.get("default_prompt_name")) is not None:
        what = f"expected no prompt before a text, got {prompt!r}"
        raise UserError(f"{where}: {MODEL_CONFIG}: {what}")
    shape = parse_shape(config, where)
    return shape, parse_limit(files, shape, where, 3)


def parse_calibration(data: bytes, where: StrPath) -> np.ndarray:
    """Parse `CrossEncoder.calibration`, float64 [2, c]; UserError unless it is ascending."""
    where = f"{where}: {CALIBRATION}"
    lists = parse_json(data, where)
    try:
        points = np.array([lists["logits"], lists["probabilities"]], np.float64)
    except (TypeError, KeyError, ValueError):
        points = np.zeros((2, 0))
    ascending = points.ndim == 2 and points.size and (np.diff(points) >= 0).all()
    if not ascending or not np.isfinite(points).all() or points[1, 0] < 0 or points[1, -1] > 1:
        what = f"{where}: expected a calibration of ascending scores and probabilities in `logits`"
        raise UserError(what, remedy="train or fetch the model again")
    return points
