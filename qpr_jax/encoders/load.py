"""Read encoders from their folders, and write them."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable

from qpr_jax.encoders import cnn_encoder, sentence_transformers, transformer_encoder
from qpr_jax.encoders.base import CARD, Encoder
from qpr_jax.encoders.named import encoder_folder
from qpr_jax.errors import UserError
from qpr_jax.files import (
    MANIFEST,
    StrPath,
    manifest_format,
    read_manifest,
    read_verified,
    write_folder,
)

# The format that a folder's manifest names (sentence-transformers writes none) -> the reader.
FORMATS: dict[str, Callable[[StrPath], Encoder]] = {
    cnn_encoder.FORMAT: cnn_encoder.read_cnn,
    transformer_encoder.FORMAT: transformer_encoder.read_transformer,
    sentence_transformers.FORMAT: transformer_encoder.read_transformer,
}
_OWN = tuple(FORMATS)


def register_encoder(format: str, read: Callable[[dict[str, bytes]], Encoder]) -> None:
    """Let folders with an encoder of one's own be read, in this process.

    Args:
      format: what its `manifest()["format"]` is, as "tfidf 1"; another one when the files change.
      read: from the contents of its `files()`, verified, to the encoder. A later call with the same
        format replaces it.

    Raises:
      UserError: the format is one of the package.
    """
    if not format or format in _OWN:
        what = f"expected the name of a format of your own, as 'tfidf 1', got {format!r}"
        raise UserError(what, setting="format")

    def read_folder(folder: StrPath) -> Encoder:
        manifest = read_manifest(folder, format=format)
        return read({name: read_verified(folder, name, manifest) for name in manifest["files"]})

    FORMATS[format] = read_folder


def read_encoder(named: StrPath) -> Encoder:
    """Read the encoder that `encoder_folder` finds; UserError where it is incomplete or damaged."""
    folder = encoder_folder(named)
    format = _folder_format(folder)
    if format is None:
        files = f"{sentence_transformers.CONFIG} and {sentence_transformers.WEIGHTS}"
        other = manifest_format(folder)
        raise UserError(
            f"{folder}: expected an encoder: a {MANIFEST} with one of the formats "
            f"{', '.join(map(repr, FORMATS))}, or {files}; "
            f"{'found neither' if other is None else f'got {other!r}'}",
            remedy="name another folder, fetch it again, or, for an encoder of your own, call "
            "`qpr_jax.register_encoder` first",
        )
    return FORMATS[format](folder)


def _folder_format(folder: StrPath) -> str | None:
    """The entry of `FORMATS` for a folder; None where it holds no encoder."""
    named = manifest_format(folder)
    if named in FORMATS:
        return named
    return sentence_transformers.FORMAT if sentence_transformers.is_model(folder) else None


def is_encoder(folder: StrPath) -> bool:
    """Whether the folder itself holds an encoder, as opposed to a run."""
    return _folder_format(folder) is not None


def contains_encoder(folder: StrPath, encoder: Encoder) -> bool:
    """Whether `folder` holds this encoder, undamaged, as `save_encoder` writes it."""
    if not pathlib.Path(folder, MANIFEST).is_file():
        return False
    with contextlib.suppress(UserError):
        return read_encoder(folder).identity == encoder.identity
    return False


def save_encoder(
    folder: StrPath,
    encoder: Encoder,
    *,
    card: str = "",
    also: Callable[[pathlib.Path], object] = bool,
) -> None:
    """Write an encoder, with a model card if there is one, unless `folder` holds it already.

    A kill leaves the previous folder or the new one. also: writes further files to the new folder.
    """
    if contains_encoder(folder, encoder):
        return
    files = encoder.files() | ({CARD: card.encode()} if card else {})
    write_folder(folder, files, also=also, **encoder.manifest())
