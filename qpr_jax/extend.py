"""Replace the encoder of an index by one that extends it, whose vectors are the same."""

from __future__ import annotations

import pathlib
import secrets
from collections.abc import Set

from qpr_jax.encoders.base import Encoder, accepted_identities
from qpr_jax.encoders.load import save_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.index.build import replace_encoder
from qpr_jax.index.milvus import MilvusStore
from qpr_jax.index.milvus_server import is_address
from qpr_jax.index.run import INDEX, export_name, read_encoder, run_encoder_folder
from qpr_jax.reranking.stages import Stages
from qpr_jax.retriever import Retriever


def extend_index(folder: StrPath, run: StrPath) -> bool:
    """Replace the encoder of the index of `folder` by that of `run`, which extends it.

    Nothing is encoded. The files of the index stay to the byte, except the manifest, which names
    the encoder: a kill leaves the old encoder or the new one. Re-rankers and calibration of
    `folder` stay, too. A collection of Milvus names `run` from then on.

    Returns whether anything changed: False if `folder` has this encoder already. UserError where
    `run` does not extend the encoder of `folder`, or one is missing or damaged.
    """
    encoder = read_encoder(run)
    if is_address(folder):
        collection = MilvusStore(str(folder))
        if (collection.run, collection.encoder) == (str(run), encoder.identity):
            return False
        _require_extension(encoder, {collection.encoder}, folder, run)
        collection.use_run(str(run), encoder.identity)
        return True
    root = pathlib.Path(folder).absolute()
    if (root / "run.json").is_file():
        what = f"expected an index, got the run {folder}, from which others start and are published"
        remedy = "make an index of its questions with `qpr index`, and extend that"
        raise UserError(what, setting="folder", remedy=remedy)
    try:
        retriever = Retriever.load(folder, indexed=True)
    except UserError as error:
        raise UserError(error.what, setting="folder", remedy=error.remedy) from None
    with retriever.store.changing():
        # The encoder of the index may be one that the present encoder extends.
        present = {retriever.encoder.identity, retriever.store.encoder}
        if present == {encoder.identity}:
            return False
        _require_extension(encoder, present, folder, run)
        stages = Stages.read(run_encoder_folder(folder), encoder)
        export = export_name(root, encoder, secrets.token_hex(8))
        save_encoder(root / export, encoder)
        stages.save(root / export)
        replace_encoder(root / INDEX, encoder.identity, export)
    return True


def _require_extension(encoder: Encoder, present: Set[str], folder: StrPath, run: StrPath) -> None:
    if not present <= {*accepted_identities(encoder)}:
        what = f"{run}: its encoder does not extend that of {folder}"
        remedy = "train one with text.added_words and encoder.pretrained, or build the index again "
        raise UserError(what, setting="run", remedy=f"{remedy}with `qpr index`")
