"""Local folders in the format of sentence-transformers: a BERT, its tokenizer, its pooling."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import Path

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
MODULES = "modules.json"
# Where the words of a question at most are said; the first that says it counts.
LENGTHS = (
    ("sentence_bert_config.json", "max_seq_length"),
    ("tokenizer_config.json", "model_max_length"),
)
POOLINGS = ("mean", "cls", "max")
# What `config.json` must say of what is not a size.
_EXPECTED = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
# Our name of a part of a layer -> theirs.
_LINEAR = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
}
_NORMS = {"attended_norm": "attention.output.LayerNorm", "norm": "output.LayerNorm"}
_TABLES = {
    "embedding": "word_embeddings",
    "positions": "position_embeddings",
    "types": "token_type_embeddings",
}


@dataclass(frozen=True)
class BertShape:
    """Sizes of a BERT, under the names of its `config.json`, and how its vectors are pooled.

    pooling: of the last layer's vectors, over the question's words. normalize: to length 1.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    pooling: str = "mean"
    normalize: bool = True


class SentenceModel(NamedTuple):
    """shape: sizes and pooling. max_words: of a question, with its marks. weights: pure, nested."""

    shape: BertShape
    max_words: int
    weights: dict[str, Any]


def sentence_model(files: Mapping[str, bytes], where: Path) -> SentenceModel:
    """The model that the files of a folder hold; UserError where one is of another kind."""
    config = _object(files, CONFIG, where)
    for name, expected in _EXPECTED.items():
        if (found := config.get(name, expected)) != expected:
            raise UserError(f"{where}: {CONFIG}: expected `{name}` {expected!r}, got {found!r}")
    pooling, normalize = _pooling(files, where)
    sizes = {name: config[name] for name in BertShape.__dataclass_fields__ if name in config}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
            raise UserError(f"{where}: {CONFIG}: `{name}`: expected a number above 0, got {size!r}")
    try:
        shape = BertShape(**(sizes | {"pooling": pooling, "normalize": normalize}))
    except TypeError as error:
        raise UserError(f"{where}: {CONFIG}: expected the sizes of a BERT ({error})") from None
    lengths = [_object(files, name, where).get(key) for name, key in LENGTHS if name in files]
    longest = min(shape.max_position_embeddings, next(filter(None, lengths), 1 << 30))
    return SentenceModel(shape, longest, nested(_tensors(files[WEIGHTS], where), shape, where))


def file_names(folder: Path) -> list[str]:
    """The files of a folder that make a sentence model; UserError where one is missing."""
    path = pathlib.Path(folder)
    names = [CONFIG, WEIGHTS, TOKENIZER]
    for name in names:
        if not (path / name).is_file():
            raise UserError(f"{path}: expected the file {name}, found none; fetch the whole folder")
    names += [name for name, _ in LENGTHS if (path / name).is_file()]
    if (path / MODULES).is_file():
        names.append(MODULES)
        for module in _modules({MODULES: (path / MODULES).read_bytes()}, path):
            name = f"{module['path']}/{CONFIG}"
            if module["path"] and (path / name).is_file():
                names.append(name)
    return names


def _object(files: Mapping[str, bytes], name: str, where: Path) -> dict[str, Any]:
    value = _json(files, name, where)
    if not isinstance(value, dict):
        raise UserError(f"{where}: {name}: expected a JSON object, got {type(value).__name__}")
    return value


def _json(files: Mapping[str, bytes], name: str, where: Path) -> Any:
    if name not in files:
        raise UserError(f"{where}: expected the file {name}, found none; fetch the whole folder")
    try:
        return json.loads(files[name])
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: {name}: expected JSON ({error}); fetch it again") from None


def _modules(files: Mapping[str, bytes], where: Path) -> list[dict[str, str]]:
    """Kind and folder of each module, in order."""
    modules = _json(files, MODULES, where)
    try:
        found = [{"kind": m["type"].rpartition(".")[2], "path": m["path"]} for m in modules]
        plain = all(re.fullmatch(r"|[\w-][\w.-]*", m["path"]) for m in found)
    except (TypeError, KeyError, AttributeError):
        raise UserError(f"{where}: {MODULES}: expected modules with `type` and `path`") from None
    if not plain:  # they are written to, too
        raise UserError(f"{where}: {MODULES}: expected folders of this folder for `path`s")
    return found


def _pooling(files: Mapping[str, bytes], where: Path) -> tuple[str, bool]:
    """How the vectors of words become one, and whether that is brought to length 1."""
    if MODULES not in files:
        return "mean", False  # as sentence-transformers takes a transformer alone
    pooling, normalize = "mean", False
    for module in _modules(files, where):
        if module["kind"] == "Pooling":
            pooling = _mode(files, f"{module['path']}/{CONFIG}", where)
        elif module["kind"] == "Normalize":
            normalize = True
        elif module["kind"] != "Transformer":
            raise UserError(
                f"{where}: {MODULES}: expected Transformer, Pooling and Normalize, got "
                f"{module['kind']}"
            )
    return pooling, normalize


def _mode(files: Mapping[str, bytes], name: str, where: Path) -> str:
    config = _object(files, name, where)
    flags = [flag for flag in config if flag.startswith("pooling_mode_") and config[flag] is True]
    mode = config.get("pooling_mode", _FLAGS.get(flags[0], flags) if len(flags) == 1 else flags)
    if mode not in POOLINGS:
        raise UserError(f"{where}: {name}: expected one of {', '.join(POOLINGS)}, got {mode}")
    return str(mode)


def _tensors(data: bytes, where: Path) -> dict[str, np.ndarray]:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load
    except ImportError as error:
        raise UserError(
            f"a transformer needs more packages ({error.name}); pip install 'qpr_jax[transformer]'"
        ) from None
    try:
        return dict(load(data))
    except SafetensorError as error:
        raise UserError(f"{where}: {WEIGHTS}: expected safetensors ({error})") from None
    except KeyError as error:
        raise UserError(
            f"{where}: {WEIGHTS}: expected numbers that NumPy has, got {error.args[0]}; save the "
            "model in float32 or float16"
        ) from None


def nested(tensors: Mapping[str, np.ndarray], shape: BertShape, where: Path) -> dict[str, Any]:
    """The parameters of `BertEncoder`, as pure nested dictionaries, of tensors by their names."""

    def taken(name: str, *sizes: int) -> np.ndarray:
        array = tensors.get(name, tensors.get(f"bert.{name}"))
        if array is None:
            raise UserError(f"{where}: expected the tensor {name}, found none")
        if array.shape != sizes:
            raise UserError(f"{where}: {name}: expected {list(sizes)}, got {list(array.shape)}")
        return np.asarray(array, np.float32)

    def linear(name: str, inputs: int, outputs: int) -> dict[str, np.ndarray]:
        kernel = taken(f"{name}.weight", outputs, inputs).T
        return {"kernel": kernel, "bias": taken(f"{name}.bias", outputs)}

    def norm(name: str) -> dict[str, np.ndarray]:
        return {"scale": taken(f"{name}.weight", size), "bias": taken(f"{name}.bias", size)}

    size, inner = shape.hidden_size, shape.intermediate_size
    wide = {"widen": (size, inner), "narrow": (inner, size)}
    rows = (shape.vocab_size, shape.max_position_embeddings, shape.type_vocab_size)
    layers = {}
    for i in range(shape.num_hidden_layers):
        layer = f"encoder.layer.{i}"
        layers[i] = {
            **{k: linear(f"{layer}.{n}", *wide.get(k, (size, size))) for k, n in _LINEAR.items()},
            **{ours: norm(f"{layer}.{theirs}") for ours, theirs in _NORMS.items()},
        }
    return {
        **{
            ours: taken(f"embeddings.{theirs}.weight", count, size)
            for (ours, theirs), count in zip(_TABLES.items(), rows, strict=True)
        },
        "norm": norm("embeddings.LayerNorm"),
        "layers": layers,
    }


def weights_file(weights: Mapping[str, Any]) -> bytes:
    """The bytes of a `model.safetensors` of what `nested` gave, or what a training made of it."""
    from safetensors.numpy import save

    tensors = {}

    def put(name: str, part: Mapping[str, np.ndarray]) -> None:
        # Linear layers keep their kernel transposed there; normalisation has a scale.
        tensors[f"{name}.weight"] = part["kernel"].T if "kernel" in part else part["scale"]
        tensors[f"{name}.bias"] = part["bias"]

    for ours, theirs in _TABLES.items():
        tensors[f"embeddings.{theirs}.weight"] = weights[ours]
    put("embeddings.LayerNorm", weights["norm"])
    for i, layer in weights["layers"].items():
        for ours, theirs in (_LINEAR | _NORMS).items():
            put(f"encoder.layer.{i}.{theirs}", layer[ours])
    return bytes(save({name: np.ascontiguousarray(array) for name, array in tensors.items()}))
