"""The folder of a convolutional encoder: safetensors, vocabulary, settings, manifest.

The `export` of a run and a published model have this format; the latter has a model card, too.
Nothing in the folder is executed. Weights that half precision holds exactly are stored so; they
are float32 in memory, and the identity is of these.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.encoders.base import parse_tensors
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, parse_json, read_manifest, read_verified
from qpr_jax.text.vocabulary import Vocabulary, vocabulary_from_bytes, vocabulary_to_bytes

FORMAT = "qpr_jax model 1"
WEIGHTS = "model.safetensors"
VOCABULARY, SETTINGS = "vocabulary.json", "settings.json"


class CnnParts(NamedTuple):
    """What the folder holds.

    weights: float32 `embedding` [V, e] with zeros in row 0 (padding); `kernel_0` [w, e, f],
    `bias_0` [f], `kernel_1`, ...; `projection` [sum of f, d], or [sum of f + e, d] with a bag of
    words. normalize: vectors have length 1. settings: of the training. extends: see `CnnEncoder`.
    """

    weights: dict[str, np.ndarray]
    vocabulary: Vocabulary
    max_tokens: int
    normalize: bool
    settings: dict[str, Any]
    extends: tuple[str, ...] = ()


def identity_of(parts: CnnParts) -> str:
    """Hash what the encoder computes with, whatever files hold it."""
    vocabulary = parts.vocabulary
    facts = ["qpr_jax encoder 1", parts.max_tokens, parts.normalize]
    facts += [vocabulary.bins, 0, vocabulary.words]
    if vocabulary.subwords or vocabulary.added:
        facts += [vocabulary.subwords, vocabulary.added]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for name, array in sorted(parts.weights.items()):
        digest.update(json.dumps([name, array.shape]).encode())
        digest.update(np.ascontiguousarray(array, "<f4").data)
    return digest.hexdigest()


def to_files(parts: CnnParts) -> dict[str, bytes]:
    """Serialize to the files of the folder; UserError where the parts do not fit each other."""
    from safetensors.numpy import save

    _check(parts, "the encoder")
    settings: dict[str, Any] = {"max_words": parts.max_tokens, "normalize": parts.normalize}
    if parts.extends:
        settings["extends"] = parts.extends
    text = json.dumps(settings | {"settings": parts.settings}, indent=2, allow_nan=False)
    return {
        WEIGHTS: save(_stored(parts.weights)),
        VOCABULARY: vocabulary_to_bytes(parts.vocabulary),
        SETTINGS: text.encode() + b"\n",
    }


def round_to_half(array: np.ndarray) -> np.ndarray:
    """The nearest numbers of half precision, as float32; UserError for one beyond its range.

    An encoder of such weights is stored in half the size.
    """
    with np.errstate(over="ignore"):
        rounded: np.ndarray = array.astype(np.float16).astype(np.float32)
    if not np.isfinite(rounded).all():
        raise UserError(
            "expected weights of half precision, up to 65,504, got larger ones",
            setting="encoder.stored_dtype",
            remedy="set `encoder.stored_dtype=float32`",
        )
    return rounded


def _stored(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays in half precision if that loses nothing in any of them; else as they are."""
    with np.errstate(over="ignore"):
        halves = {name: array.astype(np.float16) for name, array in weights.items()}
    lossless = all(np.array_equal(halves[name], weights[name]) for name in weights)
    return halves if lossless else weights


def read_parts(folder: StrPath) -> CnnParts:
    """Read and verify the folder; UserError where it is incomplete or damaged."""
    manifest = read_manifest(folder, format=FORMAT)
    weights = parse_tensors(read_verified(folder, WEIGHTS, manifest), f"{folder}: {WEIGHTS}")
    if all(array.dtype == np.float16 for array in weights.values()):
        weights = {name: array.astype(np.float32) for name, array in weights.items()}
    vocabulary = vocabulary_from_bytes(read_verified(folder, VOCABULARY, manifest))
    where = f"{folder}: {SETTINGS}"
    value = parse_json(read_verified(folder, SETTINGS, manifest), where)
    if not isinstance(value, dict) or not isinstance(value.get("settings"), dict):
        raise _damaged(f"{where}: expected `settings`, found none")
    normalize = value.get("normalize")
    if not isinstance(normalize, bool):
        raise _damaged(f"{where}: `normalize`: expected true or false, got {normalize!r}")
    extends = value.get("extends", [])
    if not isinstance(extends, list) or not all(isinstance(name, str) for name in extends):
        raise _damaged(f"{where}: `extends`: expected a list of identities, got {extends!r:.60}")
    max_tokens: Any = value.get("max_words")
    settings = value["settings"]
    parts = CnnParts(weights, vocabulary, max_tokens, normalize, settings, tuple(extends))
    _check(parts, str(folder))
    return parts


def _damaged(what: str) -> UserError:
    return UserError(what, remedy="export or fetch it again")


def _check(parts: CnnParts, where: str) -> None:
    """UserError where types and shapes do not fit each other and the vocabulary."""
    weights, limit = parts.weights, parts.max_tokens
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise UserError(f"{where}: `max_words`: expected 1 or more, got {limit!r}")
    count = (len(weights) - 2) // 2
    convolutions = {f"{name}_{i}" for i in range(count) for name in ("kernel", "bias")}
    if count < 1 or {"embedding", "projection", *convolutions} != weights.keys():
        raise _damaged(
            f"{where}: expected `embedding`, `kernel_0`, `bias_0`, ..., `projection`, got "
            f"{', '.join(sorted(weights))}"
        )
    for name, array in weights.items():
        if array.dtype != np.float32 or not np.isfinite(array).all():
            raise _damaged(f"{where}: `{name}`: expected finite float32 numbers, got others")
    embedding, projection = weights["embedding"], weights["projection"]
    kernels = [weights[f"kernel_{i}"] for i in range(count)]
    filters = [kernel.shape[-1] if kernel.ndim == 3 else 0 for kernel in kernels]
    fits = (
        embedding.ndim == 2
        and len(embedding) == parts.vocabulary.size
        and not embedding[0].any()
        and all(k.ndim == 3 and k.size and k.shape[1] == embedding.shape[1] for k in kernels)
        and all(weights[f"bias_{i}"].shape == (n,) for i, n in enumerate(filters))
        and projection.ndim == 2
        and len(projection) in (sum(filters), sum(filters) + embedding.shape[1])
        and projection.shape[1] > 0
    )
    if not fits:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in weights.items())
        raise _damaged(
            f"{where}: the weights ({shapes}) do not fit each other and a vocabulary of "
            f"{parts.vocabulary.size} ids"
        )
