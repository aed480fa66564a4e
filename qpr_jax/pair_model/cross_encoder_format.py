"""The files of a cross-encoder's folder, as sentence-transformers reads and writes them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping

import numpy as np

from qpr_jax.encoders.sentence_transformers import (
    CONFIG,
    LENGTHS,
    MODULES,
    TOKENIZER,
    parse_limit,
    parse_modules,
    parse_object,
    parse_shape,
)
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, parse_json
from qpr_jax.models import BertShape
from qpr_jax.pair_model.model_folder import REMEDY

TOKENIZER_CONFIG = "tokenizer_config.json"
MODEL_CONFIG = "config_sentence_transformers.json"  # of sentence-transformers 5.4 and later
CALIBRATION = "calibration.json"  # our own; sentence-transformers ignores it
ARCHITECTURE = "BertForSequenceClassification"
_SIGMOID = "torch.nn.modules.activation.Sigmoid"  # from logit to score
# The two linear layers after the BERT layers, and the names of their tensors.
HEAD = {"pooler": "bert.pooler.dense", "classifier": "classifier"}
OPTIONAL = (*(name for name, _ in LENGTHS), MODEL_CONFIG, MODULES, CALIBRATION)


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
        raise UserError(what, remedy=REMEDY)
    return points
