"""The model of pairs of an encoder: its logit orders texts, and its sigmoid is their score.

There are three: *plain* (`pair_model.plain`), *words* (`pair_model.words`) and cross-encoders.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from qpr_jax.encoders.encoder import Encoder
from qpr_jax.encoders.load import load_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, manifest_format
from qpr_jax.index.stores import run_encoder_folder
from qpr_jax.pair_model import plain, words

# What orders hits: False: the distance; None: the model of pairs, if there is one.
Rerank = Literal[False, "cross_encoder"] | None
PAIR_MODEL = "pair_model"  # sub-folder of an encoder's folder


class PairModel(Protocol):
    """Scores pairs of texts; safe to use from several threads."""

    @property
    def depth(self) -> int:
        """How many hits of a search it orders at least."""

    def logits(
        self,
        first: Sequence[str],
        second: Sequence[str],
        distances: np.ndarray,
        spreads: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute the logits of pairs of texts, float64 [m].

        Args:
          first, second: m texts each, as the encoder reads them.
          distances: of their vectors, squared, float [m].
          spreads: float [m], of pairs of a table (see `plain`); None: hits of a search.
        """


FittedModel = plain.PlainModel | words.WordsModel


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


def save_pair_model(folder: StrPath, model: FittedModel | None) -> None:
    """Write a model, if there is one, to the folder of its encoder."""
    path = pathlib.Path(folder, PAIR_MODEL)
    if isinstance(model, words.WordsModel):
        words.save_words(path, model)
    elif model:
        plain.save_plain(path, model)


def read_encoder_and_model(named: StrPath | Encoder) -> tuple[Encoder, FittedModel | None]:
    """Read an encoder, as `read_encoder` does, and its model of pairs.

    named: or an encoder itself, which has none.
    """
    if not isinstance(named, str | os.PathLike):
        return named, None
    folder = run_encoder_folder(named)
    encoder = load_encoder(folder)
    return encoder, read_pair_model(folder, encoder)


def require_model(model: FittedModel | None) -> FittedModel:
    """Return the model; UserError if there is none."""
    if model is None:
        what = "the encoder has no model of pairs, so its pairs have no scores"
        remedy = "give a `max_distance`, or fit scores to labels with `qpr calibrate`"
        raise UserError(what, remedy=remedy)
    return model


def model_facts(model: FittedModel | None) -> dict[str, Any] | None:
    """Return what `qpr info` prints of a model."""
    if model is None:
        return None
    kind = "words" if isinstance(model, words.WordsModel) else "plain"
    return {"kind": kind, "depth": model.depth, **model.settings}
