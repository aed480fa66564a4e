"""What a search reads of an index folder: a build, and the changes since."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST
from qpr_jax.ids import Id
from qpr_jax.index.base import Question, check_encoder
from qpr_jax.index.build import read_build
from qpr_jax.index.questions import Key, QuestionFiles, after, batches, damaged, stored_key
from qpr_jax.index.vectors import Live, Vectors

log = logging.getLogger(__name__)

MANY_ADDED = 50_000  # vectors; a search compares each of them
_CHUNK = 16_384  # questions that are read at once


class State(NamedTuple):
    """A build, and the changes since, applied in their order."""

    manifest: dict[str, Any]
    signature: tuple[int, ...]
    files: QuestionFiles
    vectors: Vectors
    added: list[Question]  # behind those of the build, by row
    row_of: dict[Key, int]  # of the keys of what was added
    live: Live  # the rows that can be found
    sequence: int  # of the last change that is in it
    next_id: int

    def rows_of(self, ids: Iterable[Id]) -> dict[Key, int]:
        """Return the rows of the ids that are there, by their keys."""
        keys = {stored_key(id) for id in ids}
        found = {key: self.row_of[key] for key in keys if key in self.row_of}
        mask = self.live.mask
        for key, row in self.files.rows_of([*keys.difference(found)]).items():
            if mask is None or mask[row]:
                found[key] = row
        return found

    def questions(self, rows: Sequence[int]) -> dict[int, Question]:
        """Return the questions of rows, removed ones included."""
        built = len(self.vectors.built)
        found = self.files.get([row for row in rows if row < built])
        found.update((row, self.added[row - built]) for row in rows if row >= built)
        return found

    def blocks(self) -> Iterator[tuple[np.ndarray, list[Question]]]:
        """Yield the rows that can be found, int64 [m], and their questions, some at a time."""
        mask = self.live.mask
        for part in batches(self.live.rows, _CHUNK):
            rows = np.arange(part.start, part.stop)
            rows = rows if mask is None else rows[mask[rows]]
            found = self.questions(rows.tolist())
            yield rows, [found[row] for row in rows.tolist()]

    def apply(self) -> State:
        """Return the state after all changes in the file; do not use this one if it fails."""
        changes = self.files.changes(self.sequence, self.live.rows)
        if not changes:
            return self
        removed, vectors, next_id = [], [], self.next_id
        for _, row, key, question, vector in changes:
            if question is None or vector is None:
                removed.append(row)
                if self.row_of.get(key) == row:
                    del self.row_of[key]
            else:
                self.row_of[key] = row
                self.added.append(question)
                vectors.append(vector)
                next_id = max(next_id, after(question.id))
        if vectors:
            before = self.vectors.added
            self.vectors.add(np.stack(vectors))
            if before <= MANY_ADDED < self.vectors.added:
                log.warning("many questions were added; `qpr compact` makes searches fast")
        live = self.live.changed(np.array(removed, np.int64), len(vectors))
        return self._replace(live=live, sequence=changes[-1][0], next_id=next_id)


def open_state(folder: pathlib.Path, encoder: str) -> State:
    """Open the present build as it was before all changes; `encoder` as of `check_encoder`."""
    while True:
        signature = signature_of(folder)
        try:
            manifest, files, vectors = read_build(folder)
        except (UserError, FileNotFoundError) as error:
            if signature_of(folder) != signature:
                continue  # another process replaced the build
            if isinstance(error, UserError):
                raise
            raise damaged(error.filename, "the file is missing") from None
        check_encoder(folder, manifest["encoder"], encoder)
        live = Live(len(vectors), len(vectors))
        return State(manifest, signature, files, vectors, [], {}, live, 0, manifest["next_id"])


def signature_of(folder: pathlib.Path) -> tuple[int, ...]:
    """Return what differs when the manifest of a folder was replaced."""
    try:
        facts = os.stat(f"{folder}/{MANIFEST}")  # joining paths would take longer
    except FileNotFoundError:
        return ()
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
