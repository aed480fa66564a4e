"""Stores by the scheme of their location, and the encoder of a location.

The scheme is that of an address, as `milvus://HOST/NAME`; a folder has none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
from typing import Any

from qpr_jax import kinds
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.encoders.load import FORMATS, encoder_folder, is_encoder, load_encoder
from qpr_jax.encoders.sentence_transformers import CONFIG, WEIGHTS
from qpr_jax.errors import UserError, later_format
from qpr_jax.files import MANIFEST, StrPath, manifest_format
from qpr_jax.index.build import EXPORT, found_nothing, index_manifest, refuse_part
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.index_config import IndexConfig
from qpr_jax.index.milvus import MilvusStore
from qpr_jax.index.protocol import SaveEncoder, Store

_EXPORT = re.compile(r"export(-[0-9a-f]{16})?")

STORES: dict[str, type[Store]] = {"": FolderStore, "milvus": MilvusStore}


def store_class(location: StrPath) -> type[Store]:
    """Return the class of the stores at a location."""
    scheme, _, rest = os.fspath(location).partition("://")
    return STORES.get(scheme if rest else "", FolderStore)


def open_store(location: StrPath) -> Store:
    """Open the store at a location; UserError if there is none."""
    return store_class(location).open(os.fspath(location))


def copy_store(
    store: Store,
    location: StrPath,
    encoder: Encoder,
    encoder_name: str,
    save_encoder: SaveEncoder,
) -> Store:
    """Write the questions of a store to another location; arguments as of `Store.build`."""
    kind = store_class(location)
    if isinstance(store, FolderStore) and kind is FolderStore:  # vectors and codes are copied
        return store.copy_to(location, encoder, save_encoder)
    index_config = dataclasses.replace(store.index_config, **kind.defaults)
    questions = store.questions()
    return kind.build(
        os.fspath(location), questions, encoder, index_config, encoder_name, save_encoder
    )


def encoder_of(location: StrPath) -> StrPath:
    """Return what the encoder of a location is read from; a folder itself has its encoder."""
    kind = store_class(location)
    return location if kind is FolderStore else kind.open(os.fspath(location)).encoder_name


def index_config_of(encoder: Encoder, **changes: Any) -> IndexConfig:
    """Return how the run of an encoder indexes; `changes` replace fields."""
    names = [field.name for field in dataclasses.fields(IndexConfig)]
    stored = {name: encoder.settings.get(f"index.{name}") for name in names}
    chosen = {name: value for name, value in stored.items() if value is not None}
    return IndexConfig(**(chosen | changes))


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
        kinds.refuse_kind(folder, kinds.ENCODER)
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
    kinds.refuse_kind(folder, kinds.ENCODER, kinds.RUN, kinds.INDEX)
    remedy = later_format(manifest_format(folder), FORMATS) or "name another folder"
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
