"""The files of a cross-encoder's folder, as sentence-transformers reads and writes them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from qpr_jax.encoders.sentence_transformers import (
    CONFIG,
    MODULES,
    TOKENIZER,
    parse_modules,
    parse_shape,
)
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, parse_json
from qpr_jax.models import BertShape
from qpr_jax.reranking.model_folder import REMEDY

TOKENIZER_CONFIG = "tokenizer_config.json"
LENGTH_CONFIG = "sentence_bert_config.json"
MODEL_CONFIG = "config_sentence_transformers.json"  # of sentence-transformers 5.4 and later
CALIBRATION = "calibration.json"  # our own; sentence-transformers ignores it
ARCHITECTURE = "BertForSequenceClassification"
# Functions from logit to score, by the class that a folder names; the first is the default.
ACTIVATIONS = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
}
# The two linear layers after the BERT layers, and the names of their tensors.
HEAD = {"pooler": "bert.pooler.dense", "classifier": "classifier"}
OPTIONAL = (TOKENIZER_CONFIG, LENGTH_CONFIG, MODEL_CONFIG, MODULES, CALIBRATION)


def is_cross_encoder(folder: StrPath) -> bool:
    """Whether the `config.json` of a folder names the architecture of a BERT cross-encoder."""
    path = pathlib.Path(folder, CONFIG)
    config = parse_json(path.read_bytes(), path) if path.is_file() else None
    return isinstance(config, dict) and config.get("architectures") == [ARCHITECTURE]


def new_files(encoder: Mapping[str, bytes], max_tokens: int) -> dict[str, bytes]:
    """Make the files of a cross-encoder, without weights, from those of an encoder."""
    sigmoid = next(iter(ACTIVATIONS))
    config = _object(encoder, CONFIG, "encoder") | {
        "architectures": [ARCHITECTURE],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "sentence_transformers": {"activation_fn": sigmoid},
        "sbert_ce_default_activation_function": sigmoid,  # for versions before 4
    }
    tokenizer = _object(encoder, TOKENIZER_CONFIG, "encoder") | {"model_max_length": max_tokens}
    written = ((CONFIG, config), (TOKENIZER_CONFIG, tokenizer))
    files = {name: json.dumps(value, indent=2).encode() + b"\n" for name, value in written}
    return files | {TOKENIZER: encoder[TOKENIZER]}


def _object(files: Mapping[str, bytes], name: str, where: StrPath) -> dict[str, Any]:
    value = parse_json(files.get(name, b"{}"), f"{where}: {name}")
    if not isinstance(value, dict):
        raise UserError(f"{where}: {name}: expected a JSON object, got {type(value).__name__}")
    return value


def parse_shape_and_limit(files: Mapping[str, bytes], where: StrPath) -> tuple[BertShape, int]:
    """Parse the sizes, and the largest length of a pair in tokens, including special tokens.

    UserError if it is no BERT cross-encoder, has several outputs, or changes the texts.
    """
    config, model = (_object(files, name, where) for name in (CONFIG, MODEL_CONFIG))
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
    limit = (
        _object(files, LENGTH_CONFIG, where).get("max_seq_length")
        or _object(files, TOKENIZER_CONFIG, where).get("model_max_length")
        or shape.max_position_embeddings
    )
    if not isinstance(limit, int | float) or limit < 3:
        raise UserError(f"{where}: expected room for 3 tokens or more, got {limit!r}")
    return shape, int(min(limit, shape.max_position_embeddings))


def parse_activation(files: Mapping[str, bytes], where: StrPath) -> str:
    """Parse the activation as sentence-transformers does: newest place first, default sigmoid."""
    config = _object(files, CONFIG, where)
    new = config.get("sentence_transformers")
    places = (
        _object(files, MODEL_CONFIG, where).get("activation_fn"),
        new.get("activation_fn") if isinstance(new, dict) else None,
        config.get("sbert_ce_default_activation_function"),
        next(iter(ACTIVATIONS)),
    )
    named = next(place for place in places if place is not None)
    if not isinstance(named, str) or named not in ACTIVATIONS:
        what = f"expected one of the activations {', '.join(ACTIVATIONS)}, got {named!r}"
        raise UserError(f"{where}: {what}")
    return ACTIVATIONS[named]


def parse_head(
    tensors: Mapping[str, np.ndarray], shape: BertShape, where: StrPath
) -> dict[str, Any]:
    """Parse the parameters of the pooler and the classifier."""
    size, head = shape.hidden_size, {}
    for (part, name), outputs in zip(HEAD.items(), (size, 1), strict=True):
        kernel, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
        if kernel is None or bias is None:
            raise UserError(f"{where}: expected the tensors {name}.weight and .bias, found none")
        if kernel.shape != (outputs, size) or bias.shape != (outputs,):
            got = f"{list(kernel.shape)} and {list(bias.shape)}"
            what = f"expected {[outputs, size]} and {[outputs]}, got {got}"
            raise UserError(f"{where}: {name}: {what}")
        head[part] = {"kernel": np.float32(kernel).T, "bias": np.float32(bias)}
    return head


def parse_calibration(data: bytes, where: StrPath) -> np.ndarray:
    """Parse `CrossEncoder.calibration`, float64 [2, c]; UserError unless it is ascending."""
    where = f"{where}: {CALIBRATION}"
    known = parse_json(data, where)
    try:
        points = np.array([known["logits"], known["probabilities"]], np.float64)
    except (TypeError, KeyError, ValueError):
        points = np.zeros((2, 0))
    ascending = points.ndim == 2 and points.size and (np.diff(points) >= 0).all()
    if not ascending or not np.isfinite(points).all() or points[1, 0] < 0 or points[1, -1] > 1:
        what = f"{where}: expected a calibration of ascending scores and probabilities in `logits`"
        raise UserError(what, remedy=REMEDY)
    return points
