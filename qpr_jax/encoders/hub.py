"""Models of the Hugging Face hub by their address: downloaded when used, and verified."""

from __future__ import annotations

import hashlib
import pathlib
import re

from qpr_jax.errors import UserError, needs

PREFIX = "hf://"
_ADDRESS = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
# The files of a model that are read; code and weights in other formats are not downloaded.
_PATTERNS = ("*.json", "*.safetensors", "*.txt", "README.md")


def fetch_model(address: str) -> pathlib.Path:
    """Download a model, unless the hub's cache has it, and return its folder.

    The address is `hf://ORG/NAME`, or `hf://ORG/NAME@REVISION`, a branch, a tag or a commit.
    Without a network, the cached files are used. UserError if there are none, if there is no such
    model, or if a file differs from its hash.
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
        raise UserError(
            f"{address}: expected a model of the hub, got {type(error).__name__} ({reason})",
            remedy="check the address and the network",
        ) from error
    path = pathlib.Path(folder)
    for file in sorted(file for pattern in _PATTERNS for file in path.rglob(pattern)):
        _verify(file)
    return path


def _verify(path: pathlib.Path) -> None:
    """UserError unless the file has the hash that is the name of its blob in the cache.

    The hash is the SHA-256 of a large file, and Git's hash of another. The blob may be a link.
    """
    if not path.is_symlink():
        raise UserError(
            f"{path}: expected a link to a file whose name is its hash, got a file",
            remedy="keep the hub's cache (HF_HOME) on a disk that supports links",
        )
    expected = path.readlink().name
    with path.open("rb") as file:
        if len(expected) == 64:
            digest = hashlib.file_digest(file, "sha256")
        else:
            git = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
            digest = hashlib.file_digest(file, lambda: git)
    if digest.hexdigest() != expected:
        raise UserError(
            f"{path}: the bytes differ from the hash that the hub names them by, in "
            f"{path.resolve()}",
            remedy="remove both files and fetch the model again",
        )
