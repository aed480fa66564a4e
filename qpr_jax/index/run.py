"""What the folder of a run or of an index says of both: the encoder, and the recipe."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
from typing import Any

from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import contains_encoder, encoder_folder, is_encoder, load_encoder
from qpr_jax.encoders.sentence_transformers import CONFIG, WEIGHTS
from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, StrPath, read_object
from qpr_jax.index.milvus import MilvusStore
from qpr_jax.index.milvus_server import is_address
from qpr_jax.index.recipe import Recipe

EXPORT, INDEX = "export", "index"  # sub-folders of a run or of an index
_EXPORT = re.compile(r"export(-[0-9a-f]{16})?")


def run_recipe(encoder: Encoder, **given: Any) -> Recipe:
    """Return the recipe in the settings of the run of an encoder; `given` fields replace it."""
    names = [field.name for field in dataclasses.fields(Recipe)]
    stored = {name: encoder.settings.get(f"index.{name}") for name in names}
    known = {name: value for name, value in stored.items() if value is not None}
    return Recipe(**(known | given))


def read_encoder(encoder: StrPath) -> Encoder:
    """Read the encoder that `run_encoder_folder` finds."""
    return load_encoder(run_encoder_folder(encoder))


def run_encoder_folder(encoder: StrPath) -> pathlib.Path:
    """Return the folder of an encoder, which holds its model of pairs, too.

    encoder: as in `encoders.load.encoder_folder`; or the folder of a run or of an index, or the
      address of a collection of Milvus, which names its encoder.
    """
    named = MilvusStore(str(encoder)).encoder_name if is_address(encoder) else encoder
    folder = pathlib.Path(encoder_folder(named))
    if not folder.is_dir():
        what = f"expected an encoder or an index, found none at {folder}, nor one of this name in "
        what += "$QPR_MODELS or ~/.cache/qpr_jax/models"
        remedy = "name another folder; `qpr train` makes an encoder, and `qpr index` an index"
        raise UserError(what, remedy=remedy)
    if is_encoder(folder):
        return folder
    named = index_manifest(folder).get("export")
    if not isinstance(named, str) or not _EXPORT.fullmatch(named):  # it may name any folder
        named = EXPORT
    export = folder / named
    if export.is_dir():
        return export
    remedy = "name another folder"
    if (folder / "run.json").exists():
        remedy = "finish the run: the same command resumes it"
    elif folder.name == INDEX and (folder / MANIFEST).exists():
        remedy = f"name the folder of this index: {folder.parent}"
    what = f"{encoder}: expected a run with {EXPORT}/, or an encoder ({WEIGHTS}, with {CONFIG} or "
    what += f"with the {MANIFEST} of `qpr publish`), found neither"
    raise UserError(what, remedy=remedy)


def present_encoder(location: StrPath) -> StrPath | None:
    """Name the encoder of a folder, or of a collection of Milvus; None if there is none yet."""
    if is_address(location):
        with contextlib.suppress(UserError):
            return MilvusStore(str(location)).encoder_name
    elif os.path.isdir(location):
        with contextlib.suppress(UserError):
            run_encoder_folder(location)
            return location
    return None


def export_name(folder: pathlib.Path, encoder: Encoder, build: str) -> str:
    """Return the name of the folder for the encoder of a new build of an index.

    The encoder of the present index stays until the new index is complete.
    """
    try:
        present = index_manifest(folder).get("encoder", encoder.identity)
    except UserError:  # a damaged manifest, whose encoder is kept
        present = ""
    if present == encoder.identity or contains_encoder(folder / EXPORT, encoder):
        return EXPORT
    return f"{EXPORT}-{build}"


def index_manifest(folder: StrPath) -> dict[str, Any]:
    """Return the manifest of the index of a folder, not verified; empty if there is none."""
    return read_object(pathlib.Path(folder, INDEX, MANIFEST))
