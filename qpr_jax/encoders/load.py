"""Folders of encoders, of either kind: named, read, compared, written."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from qpr_jax.encoders import (
    cnn_encoder,
    cnn_format,
    hub,
    minilm,
    sentence_transformers,
    transformer_encoder,
)
from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, Path


class Encoder(Protocol):
    """What a retriever needs: vectors of strings, and a name of what makes them."""

    @property
    def identity(self) -> str:
        """Names the encoder by its content."""

    @property
    def settings(self) -> dict[str, Any]:
        """Of its training, flat; empty where it was not trained here."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def vocabulary_size(self) -> int:
        """Words that it tells apart."""

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Vectors float32 [n, d] of questions."""

    def warm_up(self) -> None:
        """Make now what the first questions would have to wait for."""

    def save(self, folder: Path) -> None:
        """Write it to `folder`, whole or not at all."""


def read_encoder(folder: Path) -> Encoder:
    """The encoder that `encoder_folder` finds: exported, published, or of sentence-transformers."""
    folder = encoder_folder(folder)
    if is_sentence_model(folder):
        return transformer_encoder.read_transformer(folder)
    if cnn_format.is_published(folder):
        return cnn_format.read_published(folder)
    return cnn_encoder.read_cnn(folder)


def encoder_folder(named: Path) -> pathlib.Path:
    """What is meant by the folder of an encoder, or by the name of a model.

    A name is, unless a folder is called so: `minilm`, the model of that package; `hf://ORG/NAME`,
    one of the Hugging Face hub, see `hub`; else that of a published model, which stands in
    `$QPR_MODELS`, or in the cache, `$XDG_CACHE_HOME/qpr_jax/models` (`~/.cache/qpr_jax/models`).
    """
    folder, name = pathlib.Path(named), os.fspath(named)
    if not name:
        raise UserError("expected the folder of an encoder, or the name of a model, got ''")
    if folder.is_dir():
        return folder
    if name == minilm.NAME:
        return minilm.minilm_folder()
    if name.startswith(hub.PREFIX):
        return hub.fetched(name)
    if str(folder) == folder.name:
        return next(
            (home / folder for home in cnn_format.model_folders() if (home / folder).is_dir()),
            folder,
        )
    return folder


def is_sentence_model(folder: Path) -> bool:
    """Whether a folder is in the format of sentence-transformers."""
    names = (sentence_transformers.CONFIG, sentence_transformers.WEIGHTS)
    return all(pathlib.Path(folder, name).is_file() for name in names)


def is_encoder(folder: Path) -> bool:
    """Whether a folder is one of an encoder alone, for others to read, and not a run."""
    return is_sentence_model(folder) or cnn_format.is_published(folder)


def holds(folder: Path, encoder: Encoder) -> bool:
    """Whether this encoder stands in `folder`, whole."""
    if not (pathlib.Path(folder) / MANIFEST).is_file():
        return False
    with contextlib.suppress(UserError):
        return read_encoder(folder).identity == encoder.identity
    return False


def save_encoder(folder: Path, encoder: Encoder) -> None:
    """Write an encoder to `folder`, where it does not stand already."""
    if not holds(folder, encoder):
        encoder.save(folder)
