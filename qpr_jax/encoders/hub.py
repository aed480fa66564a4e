"""Models of the Hugging Face hub, by their address: fetched when asked for, and verified."""

from __future__ import annotations

import hashlib
import pathlib
import re

from qpr_jax.errors import UserError

PREFIX = "hf://"
_ADDRESS = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
# What a model is read from; weights in other formats, and code, are not fetched.
_WANTED = ("*.json", "*.safetensors", "*.txt", "README.md")


def fetched(address: str) -> pathlib.Path:
    """The folder of `hf://ORG/NAME` or `hf://ORG/NAME@REVISION`, a branch, a tag or a commit.

    The files are kept in the hub's own cache, where the next call finds those that are still the
    present ones; without a network, all that is there. Each must have the hash that the hub names
    it by; UserError where one has not, or where nothing can be had.
    """
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise UserError(f"{address!r}: expected hf://ORG/NAME, or hf://ORG/NAME@REVISION")
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(
            f"{address}: expected the package huggingface_hub, found none; pip install "
            "'qpr_jax[hub]'"
        ) from None
    try:
        folder = pathlib.Path(
            huggingface_hub.snapshot_download(
                match["repo"], revision=match["revision"], allow_patterns=[*_WANTED]
            )
        )
    except Exception as error:  # those of the network have no class in common
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{address}: expected a model of the hub, got {type(error).__name__} ({reason}); is "
            "there such a model, and a network?"
        ) from error
    for path in sorted(path for wanted in _WANTED for path in folder.rglob(wanted)):
        _verify(path)
    return folder


def _verify(path: pathlib.Path) -> None:
    """UserError unless the file has the hash that the hub gave it, which its blob is named by.

    That is the SHA-256 of a large file, and Git's of another. The blob may be a link itself.
    """
    if not path.is_symlink():
        raise UserError(
            f"{path}: expected a link to a file that is named by its hash, got a file; keep the "
            "hub's cache (HF_HOME) on a disk that has links"
        )
    wanted = path.readlink().name
    with path.open("rb") as file:
        if len(wanted) == 64:
            digest = hashlib.file_digest(file, "sha256")
        else:
            git = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
            digest = hashlib.file_digest(file, lambda: git)
    if digest.hexdigest() != wanted:
        raise UserError(
            f"{path}: the bytes differ from the hash that the hub names them by; remove "
            f"{path.resolve()} and fetch it anew"
        )
