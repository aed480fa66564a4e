"""Build the index of an older version again."""

from __future__ import annotations

import pathlib

from qpr_jax.files import StrPath
from qpr_jax.index.question_index import index_in_memory
from qpr_jax.index.upgrading import read_old_index
from qpr_jax.reranking.second_stage import read_stages
from qpr_jax.retriever import Log, Retriever


def upgrade_index(run: StrPath, log: Log = lambda line: None) -> bool:
    """Build the index of a folder again where it is of the format before; whether it was."""
    folder = pathlib.Path(run, "index")
    old = read_old_index(folder)
    if old is None:
        return False
    encoder, stages = read_stages(run)
    empty = index_in_memory([], encoder.encode, old.requested, encoder.identity, old.next_id)
    retriever = Retriever(encoder, empty, second_stages=stages)
    with retriever._lock.hold(folder):
        if (old := read_old_index(folder)) is not None:  # else another process was faster
            retriever._rebuild(folder, old.questions(), log)
    return True
