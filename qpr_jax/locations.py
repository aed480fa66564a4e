"""What a location holds: a store of questions, and the encoder with its model of pairs.

The scheme of an address, as `milvus://HOST/NAME`, says which class of stores it has; a folder has
none. A model of pairs is *plain* (`pair_model.plain`) or of *words* (`pair_model.words`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from qpr_jax import kinds
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.encoders.load import FORMATS, encoder_folder, is_encoder, load_encoder, save_encoder
from qpr_jax.encoders.sentence_transformers import CONFIG, WEIGHTS
from qpr_jax.errors import UserError, counted, later_format
from qpr_jax.files import MANIFEST, StrPath, manifest_format
from qpr_jax.index.build import EXPORT, found_nothing, index_manifest, refuse_part
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.milvus import MilvusStore
from qpr_jax.index.protocol import IndexConfig, SaveEncoder, Store
from qpr_jax.pair_model import plain, words

log = logging.getLogger("qpr_jax")

FittedModel = plain.PlainModel | words.WordsModel
PAIR_MODEL = "pair_model"  # sub-folder of an encoder's folder
_EXPORT = re.compile(r"export(-[0-9a-f]{16})?")

STORES: dict[str, type[Store]] = {"": FolderStore, "milvus": MilvusStore}


def read_pair_model(folder: StrPath, encoder: Encoder) -> FittedModel | None:
    """Read that of an encoder's folder; None if there is none, UserError if it is of another."""
    path = pathlib.Path(folder, PAIR_MODEL)
    if not os.path.lexists(path):
        return None
    if manifest_format(path) == words.FORMAT:
        model: FittedModel = words.read_words(path, encoder)
    else:
        model = plain.read_plain(path)
    if model.encoder != encoder.fingerprint:
        what = f"{path}: expected a model of pairs of the encoder {encoder.fingerprint[:12]}, "
        what += f"got one of {model.encoder[:12]}"
        raise UserError(what, remedy="remove the folder, or put the one that belongs to it there")
    return model


def save_pair_model(folder: StrPath, model: FittedModel) -> None:
    """Write a model to the folder of its encoder."""
    path = pathlib.Path(folder, PAIR_MODEL)
    if isinstance(model, words.WordsModel):
        words.save_words(path, model)
    else:
        plain.save_plain(path, model)


def save_encoder_and_model(encoder: Encoder, model: FittedModel, folder: StrPath) -> None:
    """Write an encoder and its model of pairs to a folder."""
    save_encoder(folder, encoder)
    save_pair_model(folder, model)


def read_encoder_and_model(named: StrPath | Encoder) -> tuple[Encoder, FittedModel]:
    """Read an encoder, as `read_encoder` does, and its model of pairs.

    An encoder without one has the general one. named: or an encoder itself.
    """
    if not isinstance(named, str | os.PathLike):
        return named, plain.general_model(named)
    folder = run_encoder_folder(named)
    encoder = load_encoder(folder)
    return encoder, read_pair_model(folder, encoder) or plain.general_model(encoder)


def model_facts(model: FittedModel) -> dict[str, Any]:
    """Return what `qpr info` prints of a model."""
    kind = "words" if isinstance(model, words.WordsModel) else "plain"
    return {"kind": kind, "depth": model.depth, **model.settings}


def store_class(location: StrPath) -> type[Store]:
    """Return the class of the stores at a location."""
    scheme, _, rest = os.fspath(location).partition("://")
    return STORES.get(scheme if rest else "", FolderStore)


def open_store(location: StrPath) -> Store:
    """Open the store at a location; UserError if there is none."""
    return store_class(location).open(os.fspath(location))


def copy_store(
    store: Store, location: StrPath, encoder: Encoder, encoder_name: str, save_encoder: SaveEncoder
) -> Store:
    """Write the questions of a store to another location; arguments as of `Store.build`."""
    kind, name = store_class(location), os.fspath(location)
    with replacing(location):
        if isinstance(store, FolderStore) and kind is FolderStore:  # vectors and codes are copied
            return store.copy_to(location, encoder, save_encoder)
        index_config = dataclasses.replace(store.index_config, **kind.defaults)
        questions = store.questions()
        return kind.build(name, questions, encoder, index_config, encoder_name, save_encoder)


@contextlib.contextmanager
def replacing(location: StrPath) -> Iterator[None]:
    """Context of a build at a location; warns of the index that was there and is gone after it."""
    count = 0
    with contextlib.suppress(UserError):
        count = len(open_store(location)) if location else 0
    yield
    if count:
        log.warning("%s: replaced an index of %s", location, counted(count, "question"))


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
        raise found_nothing(folder, kinds.ENCODER)
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
