"""What the folder of a run says of its index: the encoder, and the recipe."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any

from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import contains_encoder, encoder_folder, is_encoder, read_encoder
from qpr_jax.encoders.sentence_transformers import CONFIG, WEIGHTS
from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, StrPath, read_object
from qpr_jax.index.documents import query_encoder
from qpr_jax.index.milvus_server import is_address
from qpr_jax.index.recipe import Recipe

EXPORT = "export"
_EXPORT = re.compile(r"export(-[0-9a-f]{16})?")


def run_recipe(encoder: Encoder, **given: Any) -> Recipe:
    """The recipe in the settings of the run that trained an encoder; `given` fields replace it."""
    fields = [field.name for field in dataclasses.fields(Recipe)]
    settings = encoder.settings
    known = {n: settings[f"index.{n}"] for n in fields if f"index.{n}" in settings}
    default = Recipe()
    for name, value in known.items():
        if type(value) is not type(getattr(default, name)):
            raise UserError(
                f"settings of the encoder: `index.{name}`: got {value!r}", remedy="remake it"
            )
    return Recipe(**(known | given))


def run_encoder(run: StrPath) -> Encoder:
    """The encoder of a run, or of what `encoders.load.encoder_folder` finds."""
    return read_encoder(run_encoder_folder(run))


def run_encoder_folder(run: StrPath) -> pathlib.Path:
    """The folder of the encoder of a run: its files, its manifest, and its re-rankers.

    run: or the address of a collection of Milvus.
    """
    if is_address(run):
        from qpr_jax.index.milvus_load import run_folder

        return run_folder(str(run))
    folder = pathlib.Path(encoder_folder(run))
    if not folder.is_dir():
        raise UserError(
            f"expected a run or an index, found none at {folder}, nor a model of this "
            "name in $QPR_MODELS or ~/.cache/qpr_jax/models",
            setting="run",
            remedy="name another folder; `qpr train` makes one, or `qpr index` an index",
        )
    if is_encoder(folder):
        return folder
    named = index_manifest(folder).get("export")
    if not isinstance(named, str) or not _EXPORT.fullmatch(named):  # it may name any folder
        named = EXPORT
    export = folder / named
    if export.is_dir():
        return export
    if (folder / "run.json").is_file():
        raise UserError(
            f"{folder} has no export/",
            setting="run",
            remedy="finish the run (the same command resumes it)",
        )
    raise UserError(
        f"{run}: expected a run, or a whole encoder ({WEIGHTS}, with {CONFIG} or with the "
        f"{MANIFEST} of `qpr publish`), found neither",
        setting="run",
        remedy="name another folder, or fetch it again",
    )


def export_name(run: pathlib.Path, encoder: Encoder, build: str) -> str:
    """The name of the folder for the encoder of a new build of the index of `run`.

    An encoder of another index is not touched before the new index stands.
    """
    try:
        present = query_encoder(index_manifest(run)) or encoder.identity
    except UserError:  # a damaged manifest, whose encoder is kept
        present = ""
    taken = present != encoder.identity
    return f"export-{build}" if taken and not contains_encoder(run / EXPORT, encoder) else EXPORT


def index_manifest(run: StrPath) -> dict[str, Any]:
    """The manifest of the index of a folder, not verified; empty where there is none."""
    return read_object(pathlib.Path(run, "index", MANIFEST))


def no_index(run: StrPath) -> UserError:
    """Make the error of a run that has none."""
    return UserError(
        f"{run} has no index/",
        setting="run",
        remedy="finish the run (the same command resumes it), or make an index with `qpr index` or "
        "`Retriever.build`",
    )
