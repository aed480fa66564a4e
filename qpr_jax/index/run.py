"""What the folder of a run says of its index: the encoder, and the recipe."""

from __future__ import annotations

import dataclasses
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

EXPORT, INDEX = "export", "index"  # sub-folders of a run
_EXPORT = re.compile(r"export(-[0-9a-f]{16})?")


def run_recipe(encoder: Encoder, **given: Any) -> Recipe:
    """Return the recipe in the settings of the run of an encoder; `given` fields replace it."""
    names = [field.name for field in dataclasses.fields(Recipe)]
    stored = {name: encoder.settings.get(f"index.{name}") for name in names}
    known = {name: value for name, value in stored.items() if value is not None}
    return Recipe(**(known | given))


def read_encoder(run: StrPath) -> Encoder:
    """Read the encoder of a run, or of what `encoders.load.encoder_folder` finds."""
    return load_encoder(run_encoder_folder(run))


def run_encoder_folder(run: StrPath) -> pathlib.Path:
    """Return the folder of the encoder of a run, which holds its re-rankers, too.

    run: or the address of a collection of Milvus, which names its run.
    """
    folder = pathlib.Path(encoder_folder(MilvusStore(str(run)).run if is_address(run) else run))
    if not folder.is_dir():
        what = f"expected a run or an index, found none at {folder}, nor a model of this name in "
        what += "$QPR_MODELS or ~/.cache/qpr_jax/models"
        remedy = "name another folder; `qpr train` makes a run, and `qpr index` an index"
        raise UserError(what, setting="run", remedy=remedy)
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
    what = f"{run}: expected a run with {EXPORT}/, or an encoder ({WEIGHTS}, with {CONFIG} or with "
    what += f"the {MANIFEST} of `qpr publish`), found neither"
    raise UserError(what, setting="run", remedy=remedy)


def export_name(run: pathlib.Path, encoder: Encoder, build: str) -> str:
    """Return the name of the folder for the encoder of a new build of the index of `run`.

    The encoder of the present index stays until the new index is complete.
    """
    try:
        present = index_manifest(run).get("encoder", encoder.identity)
    except UserError:  # a damaged manifest, whose encoder is kept
        present = ""
    if present == encoder.identity or contains_encoder(run / EXPORT, encoder):
        return EXPORT
    return f"{EXPORT}-{build}"


def index_manifest(run: StrPath) -> dict[str, Any]:
    """Return the manifest of the index of a folder, not verified; empty if there is none."""
    return read_object(pathlib.Path(run, INDEX, MANIFEST))
