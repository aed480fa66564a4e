"""What a search of a folder reads: a build, and the changes since, applied in their order."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.files import MANIFEST
from qpr_jax.ids import Id
from qpr_jax.index.base import Question, check_encoder
from qpr_jax.index.build import Build, open_build
from qpr_jax.index.questions import Key, after, stored_key
from qpr_jax.index.vectors import Live


class State(NamedTuple):
    """What a search reads.

    added: the questions behind those of the build, by row; `row_of` has the rows of their keys.
    live: the rows that can be found. sequence: of the last change that is in it.
    """

    build: Build
    signature: tuple[int, ...]
    added: list[Question]
    row_of: dict[Key, int]
    live: Live
    sequence: int
    next_id: int

    @property
    def built(self) -> int:
        """Number of questions of the build."""
        return len(self.build.vectors.built)

    def rows_of(self, ids: Iterable[Id]) -> dict[Key, int]:
        """Return the rows of the ids that are there, by their keys."""
        keys = {stored_key(id) for id in ids}
        found = {key: self.row_of[key] for key in keys if key in self.row_of}
        mask = self.live.mask
        for key, row in self.build.questions.rows_of([*keys.difference(found)]).items():
            if mask is None or mask[row]:
                found[key] = row
        return found

    def questions(self, rows: Sequence[int]) -> dict[int, Question]:
        """Return the questions of rows, removed ones included."""
        built = self.built
        found = self.build.questions.get([row for row in rows if row < built])
        found.update((row, self.added[row - built]) for row in rows if row >= built)
        return found

    def apply(self) -> State:
        """Return the state after all changes in the file; do not use this one if it fails."""
        changes = self.build.questions.changes(self.sequence, self.live.rows)
        if not changes:
            return self
        removed, vectors, next_id = [], [], self.next_id
        for change in changes:
            if change.question is None or change.vector is None:
                removed.append(change.row)
                if self.row_of.get(change.key) == change.row:
                    del self.row_of[change.key]
            else:
                self.row_of[change.key] = change.row
                self.added.append(change.question)
                vectors.append(change.vector)
                next_id = max(next_id, after([change.question.id]))
        if vectors:
            self.build.vectors.add(np.stack(vectors))
        live = self.live.changed(np.array(removed, np.int64), len(vectors))
        return self._replace(live=live, sequence=changes[-1].sequence, next_id=next_id)


def open_state(folder: pathlib.Path, encoders: Sequence[str]) -> State:
    """Open the build of a folder, as it was before all changes.

    UserError if it is damaged, or of none of the `encoders`; without any, of all.
    """
    signature = manifest_signature(folder)
    build = open_build(folder)
    check_encoder(folder, build.manifest["encoder"], encoders)
    count = len(build.vectors.built)
    return State(build, signature, [], {}, Live(count, count), 0, build.manifest["next_id"])


def manifest_signature(folder: pathlib.Path) -> tuple[int, ...]:
    """Return what differs when the manifest of a folder was replaced."""
    facts = os.stat(f"{folder}/{MANIFEST}")  # joining paths would take longer
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
