"""Stores by the scheme of their location: `milvus://HOST/NAME`, or a folder, which has none."""

from __future__ import annotations

import dataclasses
import os

from qpr_jax.encoders.base import Encoder
from qpr_jax.files import StrPath
from qpr_jax.index.base import SaveEncoder, Store
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.milvus import MilvusStore

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
    recipe = dataclasses.replace(store.recipe, **kind.defaults)
    questions = store.questions()
    return kind.build(os.fspath(location), questions, encoder, recipe, encoder_name, save_encoder)


def encoder_of(location: StrPath) -> StrPath:
    """Return what the encoder of a location is read from; a folder itself has its encoder."""
    kind = store_class(location)
    return location if kind is FolderStore else kind.open(os.fspath(location)).encoder_name
