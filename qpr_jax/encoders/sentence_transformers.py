"""Folders of sentence-transformers: a BERT, RoBERTa or MPNet, its tokenizer, its pooling."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qpr_jax.encoders.encoder import parse_tensors
from qpr_jax.errors import UserError
from qpr_jax.files import (
    StrPath,
    manifest_format,
    parse_json,
    read_manifest,
    read_verified,
    require_file,
)
from qpr_jax.models import BertShape

FORMAT = "sentence-transformers"
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
MODULES = "modules.json"
_WHOLE = "fetch the whole folder, with its weights in safetensors"
# Files that limit the tokens of a question, and the key; the first limit counts.
LENGTHS = (
    ("sentence_bert_config.json", "max_seq_length"),
    ("tokenizer_config.json", "model_max_length"),
)
# A RoBERTa is a BERT whose positions begin behind that of padding. An MPNet is a RoBERTa that also
# knows distances.
ROBERTAS = ("roberta", "xlm-roberta", "camembert", "mpnet")
# Allowed values in `config.json`, apart from sizes.
_EXPECTED = {
    "model_type": ("bert", *ROBERTAS),
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
}
_POOLINGS = ("mean", "cls", "max")
# Names in `models.bert.BertLayer` -> names in the tensors' file.
_LINEAR = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
}
_POSITIONS, _BUCKETS = "max_position_embeddings", "relative_attention_num_buckets"
_UNUSED = 2  # positions of a RoBERTa, up to that of padding
# Names in the tensors' file of an MPNet -> of a BERT.
_OF_MPNET = {
    "attention.attn.q.": "attention.self.query.",
    "attention.attn.k.": "attention.self.key.",
    "attention.attn.v.": "attention.self.value.",
    "attention.attn.o.": "attention.output.dense.",
    "attention.LayerNorm.": "attention.output.LayerNorm.",
}
_DISTANCES = "encoder.relative_attention_bias.weight"
_NORMS = {"attended_norm": "attention.output.LayerNorm", "norm": "output.LayerNorm"}
_TABLES = {
    "embedding": "word_embeddings",
    "positions": "position_embeddings",
    "types": "token_type_embeddings",
}


def read_files(
    folder: StrPath, format: str, optional: Sequence[str]
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Read the files that define a model, and the settings of its training.

    They are verified if the manifest has this format; other programs write a manifest.json, too.
    """
    path, required = pathlib.Path(folder), (CONFIG, TOKENIZER, WEIGHTS)
    if manifest_format(path) == format:
        manifest = read_manifest(path, format=format)
        names = (*required, *(name for name in optional if name in manifest["files"]))
        contents = {name: read_verified(path, name, manifest) for name in names}
        settings = manifest.get("settings")
        return contents, settings if isinstance(settings, dict) else {}
    names = (*required, *(name for name in optional if (path / name).is_file()))
    return {name: require_file(path / name, remedy=_WHOLE).read_bytes() for name in names}, {}


def optional_files(folder: StrPath) -> list[str]:
    """List the files that may say how an encoder reads and pools a text."""
    names, path = [MODULES, *(name for name, _ in LENGTHS)], pathlib.Path(folder, MODULES)
    modules = parse_modules({MODULES: path.read_bytes()}, folder) if path.is_file() else {}
    return names + [f"{place}/{CONFIG}" for place in modules.values() if place]


def parse_model(
    files: Mapping[str, bytes], where: StrPath
) -> tuple[BertShape, int, dict[str, Any]]:
    """Parse the shape, the limit of tokens and the weights; UserError for a model of another kind.

    The limit includes markers. The weights are parameters of `models.bert.BertEncoder` as pure
    nested dictionaries.
    """
    config = parse_object(files, CONFIG, where)
    if "ForSequenceClassification" in str(config.get("architectures")):
        what = f"{where}: expected an encoder of questions, got a cross-encoder, which scores pairs"
        remedy = "give it to a search, as its cross-encoder"
        raise UserError(what, remedy=remedy)
    shape = parse_shape(config, where)
    pooling, normalize = _pooling(files, where)
    shape = dataclasses.replace(shape, pooling=pooling, normalize=normalize)
    tensors = parse_tensors(files[WEIGHTS], f"{where}: {WEIGHTS}")
    if config.get("model_type") in ROBERTAS:
        tensors = _as_bert(tensors)
    return shape, parse_limit(files, shape, where, 1), parse_weights(tensors, shape, where)


def parse_limit(files: Mapping[str, bytes], shape: BertShape, where: StrPath, least: int) -> int:
    """Return the most tokens of an input, with markers; UserError for fewer than `least`."""
    limits = (parse_object(files, name, where).get(key) for name, key in LENGTHS)
    limit = next(filter(None, limits), shape.max_position_embeddings)
    if not isinstance(limit, int | float) or limit < least:
        raise UserError(f"{where}: expected room for {least} tokens or more, got {limit!r}")
    return int(min(limit, shape.max_position_embeddings))


def parse_shape(config: Mapping[str, Any], where: StrPath) -> BertShape:
    """Return the sizes in a `config.json`; UserError where it is not that of a BERT."""
    for name, expected in _EXPECTED.items():
        if (value := config.get(name, expected[0])) not in expected:
            allowed = ", ".join(expected)
            raise UserError(f"{where}: {CONFIG}: expected `{name}` {allowed}, got {value!r}")
    sizes = {name: config[name] for name in BertShape.__dataclass_fields__ if name in config}
    if (kind := config.get("model_type")) == "mpnet":
        sizes = {_BUCKETS: 32} | sizes | {"type_vocab_size": 1}
    unused = _UNUSED if kind in ROBERTAS else 0
    for name, size in sizes.items():
        least, most, number = (0, 1, float) if name == "layer_norm_eps" else (1, 2**31, int)
        least += unused * (name == _POSITIONS)
        if type(size) is not number or not least <= size <= most:
            what = f"expected {number.__name__} from {least} to {most:,}, got {size!r:.80}"
            what = f"`{name}`: {what}"
            raise UserError(f"{where}: {CONFIG}: {what}")
    try:
        shape = BertShape(**sizes)
    except TypeError as error:
        raise UserError(f"{where}: {CONFIG}: expected the sizes of a BERT ({error})") from None
    shape = dataclasses.replace(
        shape, max_position_embeddings=shape.max_position_embeddings - unused
    )
    if shape.hidden_size % shape.num_attention_heads:
        raise UserError(f"{where}: {CONFIG}: `num_attention_heads` does not divide `hidden_size`")
    return shape


def parse_weights(
    tensors: Mapping[str, np.ndarray],
    shape: BertShape,
    where: StrPath,
    head: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Convert named tensors to the parameters of `BertEncoder`, pure nested dictionaries.

    head: names of the pooler and the classifier of a cross-encoder, here and in the file.
    """

    def tensor(name: str, *sizes: int) -> np.ndarray:
        array = tensors.get(name, tensors.get(f"bert.{name}"))
        if array is None:
            raise UserError(f"{where}: expected the tensor {name}, found none")
        if array.shape != sizes:
            raise UserError(f"{where}: {name}: expected {list(sizes)}, got {list(array.shape)}")
        return np.asarray(array, np.float32)

    def linear(name: str, inputs: int, outputs: int) -> dict[str, np.ndarray]:
        kernel = tensor(f"{name}.weight", outputs, inputs).T
        return {"kernel": kernel, "bias": tensor(f"{name}.bias", outputs)}

    def norm(name: str) -> dict[str, np.ndarray]:
        return {"scale": tensor(f"{name}.weight", size), "bias": tensor(f"{name}.bias", size)}

    size, inner = shape.hidden_size, shape.intermediate_size
    wide = {"widen": (size, inner), "narrow": (inner, size)}
    rows = (shape.vocab_size, shape.max_position_embeddings, shape.type_vocab_size)
    layers = {}
    for i in range(shape.num_hidden_layers):
        at = f"encoder.layer.{i}"
        linears = {k: linear(f"{at}.{n}", *wide.get(k, (size, size))) for k, n in _LINEAR.items()}
        layers[i] = linears | {k: norm(f"{at}.{n}") for k, n in _NORMS.items()}
    tables = {
        ours: tensor(f"embeddings.{theirs}.weight", count, size)
        for (ours, theirs), count in zip(_TABLES.items(), rows, strict=True)
    }
    ends = zip((head or {}).items(), (size, 1), strict=False)
    last = {ours: linear(theirs, size, outputs) for (ours, theirs), outputs in ends}
    if count := shape.relative_attention_num_buckets:
        tables["distances"] = tensor(_DISTANCES, count, shape.num_attention_heads)
    return tables | last | {"norm": norm("embeddings.LayerNorm"), "layers": layers}


def _as_bert(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give the tensors of a RoBERTa or an MPNet the names and the positions of those of a BERT."""
    renamed = {}
    for name, tensor in tensors.items():
        for theirs, ours in _OF_MPNET.items():
            name = name.replace(theirs, ours)
        renamed[re.sub(r"^(roberta|mpnet)\.", "", name)] = tensor
    positions, types = (f"embeddings.{_TABLES[name]}.weight" for name in ("positions", "types"))
    if (table := renamed.get(positions)) is not None:
        renamed[positions] = table[_UNUSED:]
        renamed.setdefault(types, np.zeros((1, table.shape[-1]), np.float32))
    return renamed


def named_tensors(weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of parameters of `BertEncoder` under the names of their file."""
    tensors = {}

    def add(name: str, part: Mapping[str, np.ndarray]) -> None:
        # The file holds kernels of linear layers transposed; normalization has a scale.
        tensors[f"{name}.weight"] = part["kernel"].T if "kernel" in part else part["scale"]
        tensors[f"{name}.bias"] = part["bias"]

    for ours, theirs in _TABLES.items():
        tensors[f"embeddings.{theirs}.weight"] = weights[ours]
    add("embeddings.LayerNorm", weights["norm"])
    for i, layer in weights["layers"].items():
        for ours, theirs in (_LINEAR | _NORMS).items():
            add(f"encoder.layer.{i}.{theirs}", layer[ours])
    return tensors


def parse_object(files: Mapping[str, bytes], name: str, where: StrPath) -> dict[str, Any]:
    """Parse the object of a JSON file; an empty one if the file is missing."""
    value = parse_json(files.get(name, b"{}"), f"{where}: {name}")
    if not isinstance(value, dict):
        raise UserError(f"{where}: {name}: expected a JSON object, got {type(value).__name__}")
    return value


def parse_modules(files: Mapping[str, bytes], where: StrPath) -> dict[str, str]:
    """Return the folder of each kind of module; UserError for one outside."""
    try:
        listed = parse_json(files[MODULES], f"{where}: {MODULES}")
        modules = {m["type"].rpartition(".")[2]: m["path"] for m in listed}
        inside = all(re.fullmatch(r"|[\w-][\w.-]*", path) for path in modules.values())
    except (TypeError, KeyError, AttributeError):
        inside = False
    if not inside:
        what = f"{where}: {MODULES}: expected modules with `type`, and a folder inside as `path`"
        raise UserError(what)
    return modules


def _pooling(files: Mapping[str, bytes], where: StrPath) -> tuple[str, bool]:
    """Return how token vectors are pooled, and whether the result is scaled to length 1."""
    if MODULES not in files:
        return "mean", False  # as sentence-transformers loads a transformer alone
    modules = parse_modules(files, where)
    if other := modules.keys() - {"Transformer", "Pooling", "Normalize"}:
        expected, got = "Transformer, Pooling and Normalize", ", ".join(sorted(other))
        raise UserError(f"{where}: {MODULES}: expected {expected}, got {got}")
    if "Pooling" not in modules:
        return "mean", "Normalize" in modules
    name = f"{modules['Pooling']}/{CONFIG}"
    if name not in files:
        raise UserError(f"{where}: expected the file {name}, found none", remedy=_WHOLE)
    config = parse_object(files, name, where)
    flags = [flag for flag in config if flag.startswith("pooling_mode_") and config[flag] is True]
    kinds = [re.sub(r"^pooling_mode_|_tokens?$", "", flag) for flag in flags]
    mode = config.get("pooling_mode", kinds[0] if len(kinds) == 1 else kinds)
    if mode not in _POOLINGS:
        what = f"expected one of {', '.join(_POOLINGS)}, got {mode}"
        raise UserError(f"{where}: {name}: {what}")
    return mode, "Normalize" in modules
