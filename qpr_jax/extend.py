"""Put an encoder with added words to an index, whose vectors stay as they are."""

from __future__ import annotations

import pathlib

from qpr_jax.encoders.base import accepted_identities
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.index.documents import query_encoder
from qpr_jax.index.folder import new_build, read_manifest, replace_encoder
from qpr_jax.index.milvus_server import is_address
from qpr_jax.index.run import run_encoder
from qpr_jax.milvus_retriever import renew_run
from qpr_jax.retriever import Retriever


def extend_index(folder: StrPath, run: StrPath) -> bool:
    """Put the encoder of `run` next to the index of `folder`, in place of one that it extends.

    Where the questions have an encoder of their own, that of the queries is replaced.
    The files of the index stay to the byte, but for the manifest, which names the encoder: a kill
    leaves the old encoder or the new one. Re-rankers and calibration of `folder` stay, too; a
    collection of Milvus gets those of `run`, whose encoder may be its own.

    Returns:
      Whether there was anything to do: False if `folder` has this encoder already.

    Raises:
      UserError: `run` does not extend the encoder of `folder`, or one is missing or damaged.
    """
    if is_address(folder):
        return renew_run(str(folder), run)
    encoder = run_encoder(run)
    index = pathlib.Path(folder, "index").absolute()
    retriever = _load(folder)
    with retriever.changing():
        # That of the index may be one that the present encoder extends.
        present = {retriever.encoder.identity, query_encoder(read_manifest(index))}
        if present == {encoder.identity}:
            return False
        if encoder.identity in retriever.encoder.extends:
            raise UserError(
                f"{run}: expected an encoder that extends that of {folder}, got one that it "
                "extends",
                setting="run",
                remedy="leave the index as it is; its encoder has the words of this one, too",
            )
        if not present <= {*accepted_identities(encoder)}:
            raise UserError(
                f"{run}: expected an encoder that extends that of {folder}, "
                f"{retriever.encoder.identity[:12]}, got {encoder.identity[:12]}, which extends "
                f"{', '.join(name[:12] for name in encoder.extends) or 'none'}",
                setting="run",
                remedy="train one with {text.added_words} and {encoder.pretrained}, or build the "
                "index again with `qpr index`",
            )
        stages = retriever.second_stages.with_encoder(encoder)
        export = stages.save(index.parent, new_build(), replace=True)
        replace_encoder(index, encoder.identity, export)
    return True


def _load(folder: StrPath) -> Retriever:
    """The index of `folder`, which its errors name."""
    if pathlib.Path(folder, "run.json").is_file():
        raise UserError(
            f"expected an index, got the run {folder}, from which others start and are published",
            setting="folder",
            remedy="make an index of its questions with `qpr index`, and extend that",
        )
    if not pathlib.Path(folder, "index").is_dir():
        raise UserError(
            f"expected a folder with an index, found none at {folder}",
            setting="folder",
            remedy="name another one, or make it with `qpr index`",
        )
    try:
        return Retriever.load(folder, indexed=True)
    except UserError as error:
        setting = "folder" if error.setting == "run" else error.setting
        raise UserError(error.what, setting=setting, remedy=error.remedy) from None
