"""What the folder of a run or an index holds, read while other processes may change it."""

from __future__ import annotations

import pathlib

from qpr_jax.encoders.base import Encoder, accepted_identities
from qpr_jax.encoders.packaged import default_folder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.index.documents import Documents, read_documents
from qpr_jax.index.folder import read_index
from qpr_jax.index.question_index import QuestionIndex, index_in_memory
from qpr_jax.index.recipe import Recipe, check_recipe
from qpr_jax.index.run import index_manifest, no_index, run_recipe
from qpr_jax.reranking.second_stage import SecondStages, read_stages


def open_index(
    run: StrPath, cross_encoder: StrPath | None = None, *, half: bool = False
) -> tuple[Encoder, SecondStages, QuestionIndex, str]:
    """Read the encoder of the queries, its re-rankers, the index, and the name of its build.

    Arguments as of `Retriever.load`; UserError if one is damaged.
    """
    folder = pathlib.Path(run, "index")
    while True:
        before = index_manifest(run)
        try:
            encoder, stages = read_stages(run, cross_encoder, half=half)
            if not folder.is_dir():
                raise no_index(run)
            index, build = read_index(folder, encoder=accepted_identities(encoder))
        except UserError:
            # Another process may have put the index of another encoder there.
            if index_manifest(run) == before:
                raise
        else:
            return encoder, stages, index, build


def open_encoders(
    run: StrPath | Encoder | None,
    documents_by: StrPath | None,
    cross_encoder: StrPath | None,
    recipe: Recipe | None,
) -> tuple[Encoder, SecondStages, QuestionIndex]:
    """The encoder of the queries, its re-rankers, and an index without questions.

    Arguments as of `Retriever.build`.
    """
    encoder, stages = read_stages(default_folder() if run is None else run, cross_encoder)
    documents = read_documents(documents_by, encoder) if documents_by is not None else None
    how = recipe or run_recipe(encoder)
    check_recipe(how, encoder.dimension)
    return encoder, stages, empty_index(encoder, how, documents)


def empty_index(
    encoder: Encoder, recipe: Recipe | None = None, documents: Documents | None = None
) -> QuestionIndex:
    """An index without questions for an encoder of the queries, and another of the questions."""
    identity = documents.identity if documents else encoder.identity
    how = recipe or run_recipe(encoder)
    return index_in_memory([], encoder.encode, how, identity, documents=documents)


def save_documents(run: pathlib.Path, documents: Documents | None) -> Documents | None:
    """Write the encoder of the questions, if it is another, and its re-rankers beside an index."""
    if documents is None:
        return None
    saved = documents.save(run)
    if saved.folder.resolve() != documents.folder.resolve():
        stages = SecondStages.read(documents.folder, saved.encoder)
        stages.save_models(saved.folder)
    return saved


def stages_of_questions(index: QuestionIndex) -> tuple[Encoder, SecondStages] | None:
    """The encoder of the questions and its re-rankers; None where it encodes the queries, too."""
    if index.documents is None:
        return None
    encoder = index.documents.encoder
    return encoder, SecondStages.read(index.documents.folder, encoder)
