"""What the folder of a run or of an index says of both: the encoder, and the recipe."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
from typing import Any

from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import encoder_folder, is_encoder, load_encoder
from qpr_jax.encoders.sentence_transformers import CONFIG, WEIGHTS
from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, StrPath
from qpr_jax.index.build import EXPORT, found_nothing, index_manifest, refuse_part
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.stores import encoder_of

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
      address of a store, which names its encoder.
    """
    folder = pathlib.Path(encoder_folder(encoder_of(encoder)))
    if not folder.is_dir():
        raise found_nothing(folder)
    if is_encoder(folder):
        return folder
    named = index_manifest(folder).get("export")
    if not isinstance(named, str) or not _EXPORT.fullmatch(named):  # it may name any folder
        named = EXPORT
    export = folder / named
    if export.is_dir():
        return export
    refuse_part(folder)
    remedy = "name another folder"
    if (folder / "run.json").exists():
        remedy = "finish the run: the same command resumes it"
    what = f"{encoder}: expected a run with {EXPORT}/, or an encoder ({WEIGHTS}, with {CONFIG} or "
    what += f"with the {MANIFEST} of `qpr publish`), found neither"
    raise UserError(what, remedy=remedy)


def present_encoder(location: StrPath) -> StrPath | None:
    """Name the encoder of a folder or of an address; None if there is none yet."""
    with contextlib.suppress(UserError):
        name = encoder_of(location)
        if name != location:
            return name
        if os.path.isdir(location):
            run_encoder_folder(location)
            return location
    return None
