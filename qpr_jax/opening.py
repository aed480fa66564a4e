"""From a run to its encoder, re-rankers and store, and from questions to a new store."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable

from qpr_jax.encoders.base import Encoder, accepted_identities
from qpr_jax.encoders.load import encoder_folder, is_encoder, save_encoder
from qpr_jax.encoders.packaged import NAME as PACKAGED
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.index.base import Question, Store
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.milvus import MilvusStore, is_address, run_of
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.run import INDEX, export_name, index_manifest, run_recipe
from qpr_jax.reranking.stages import Stages, read_stages

Opened = tuple[Encoder, Store, Stages, str]  # and the name of the run


def open_run(
    run: StrPath, *, indexed: bool = False, cross_encoder: StrPath | None = None
) -> Opened:
    """Open what `Retriever.load` names; a run without an index gets an empty temporary one."""
    if is_address(run):
        address = str(run)
        name = run_of(address)
        encoder, stages = read_stages(name, cross_encoder)
        return encoder, MilvusStore(address, accepted_identities(encoder)), stages, name
    if not indexed:
        run = encoder_folder(run)
        if is_encoder(run) and not pathlib.Path(run, INDEX).exists():
            encoder, stages = read_stages(run, cross_encoder)
            parts = encoder, stages, str(run)
            return encoder, create_store(None, [], run_recipe(encoder), parts), stages, str(run)
    while True:
        before = index_manifest(run)
        try:
            encoder, stages = read_stages(run, cross_encoder)
            if not pathlib.Path(run, INDEX).is_dir():
                raise UserError(
                    f"{run} has no {INDEX}/",
                    setting="run",
                    remedy="finish the run (the same command resumes it), or make an index with "
                    "`qpr index`",
                )
            accepted = accepted_identities(encoder)
            store = FolderStore(pathlib.Path(run, INDEX), encoders=accepted)
        except UserError:
            # Another process may have put the index of another encoder there.
            if index_manifest(run) == before:
                raise
        else:
            return encoder, store, stages, str(run)


def name_of(run: StrPath | Encoder | None, encoder: Encoder) -> str:
    """Return the name of a run for other processes and machines, "" for an encoder from Python."""
    if run is None:
        return PACKAGED
    path = "" if run is encoder else str(run)
    return os.path.abspath(path) if os.path.exists(path) else path


Parts = tuple[Encoder, Stages, str]  # an encoder, its re-rankers, and the name of the run


def create_store(
    folder: StrPath | None, questions: Iterable[Question], recipe: Recipe, parts: Parts
) -> Store:
    """Index questions in a folder, None for a temporary one, or in a collection of Milvus."""
    encoder, stages, run = parts
    if is_address(folder):
        if not run:
            raise UserError(
                "expected the encoder of a run, got one from Python, which other machines lack",
                remedy="save it in a folder first",
            )
        identity = encoder.identity
        return MilvusStore.create(
            str(folder), questions, encoder.encode, recipe, identity, run, extends=encoder.extends
        )

    def export(build: str) -> str:
        return (
            "" if folder is None else export_encoder(pathlib.Path(folder), encoder, stages, build)
        )

    return FolderStore.create(
        None if folder is None else pathlib.Path(folder, INDEX),
        questions,
        encoder.encode,
        recipe,
        encoder=encoder.identity,
        dimension=encoder.dimension,
        export=export,
    )


def export_encoder(
    run: pathlib.Path, encoder: Encoder, stages: Stages, build: str, *, replace: bool = True
) -> str:
    """Write an encoder and its re-rankers beside an index; return the name of their folder."""
    name = export_name(run, encoder, build)
    save_encoder(run / name, encoder)
    stages.save(run / name, replace=replace)
    return name
