"""The folders of models with arrays: a manifest and a safetensors file, and no code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qpr_jax.encoders.encoder import parse_tensors
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, read_manifest, read_verified

REMEDY = "train or fetch the model again"


def read_model(
    folder: StrPath, name: str, *, format: str, facts: Mapping[str, type]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read and verify a folder: its manifest and its arrays by name.

    facts: entries of the manifest, and their types in JSON; UserError if one has another.
    """
    manifest = read_manifest(folder, format=format)
    for fact, expected in facts.items():
        if type(manifest.get(fact)) is not expected:
            what = f"expected {expected.__name__} as `{fact}`, got {manifest.get(fact)!r:.80}"
            raise UserError(f"{folder}: {what}", remedy=REMEDY)
    return manifest, parse_tensors(read_verified(folder, name, manifest), f"{folder}: {name}")


def check_array(
    arrays: Mapping[str, np.ndarray], name: str, dtype: Any, shape: tuple[int, ...], where: str
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
