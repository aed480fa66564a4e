"""What a search of a folder reads: a build, and the changes since, applied in their order."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST
from qpr_jax.ids import Id
from qpr_jax.index.base import Question, check_encoder
from qpr_jax.index.build import Build, open_build
from qpr_jax.index.questions import Change, after
from qpr_jax.index.vectors import Live


class State(NamedTuple):
    """What a search reads.

    added: the questions behind those of the build, by row; `row_of` has the rows of their keys.
    live: the rows that can be found. sequence: of the last change that is in it.
    """

    build: Build
    signature: tuple[int, ...]
    added: list[Question]
    row_of: dict[Id, int]
    live: Live
    sequence: int
    next_id: int

    @property
    def built(self) -> int:
        """Number of questions of the build."""
        return len(self.build.vectors.built)

    def rows_of(self, keys: Iterable[Id]) -> dict[Id, int]:
        """Return the row of each key of a present question."""
        found, others = {}, []
        for key in keys:
            if (row := self.row_of.get(key)) is None:
                others.append(key)
            else:
                found[key] = row
        mask = self.live.mask
        for key, row in self.build.questions.rows_of(others).items():
            if mask is None or mask[row]:
                found[key] = row
        return found

    def questions(self, rows: Sequence[int]) -> dict[int, Question]:
        """Return the questions of rows, removed ones included; UserError if one is missing."""
        built = self.built
        if not self.added:
            return self.build.questions.get(rows)
        found = self.build.questions.get(r for r in rows if r < built)
        for row in rows:
            if row >= built:
                found[row] = self.added[row - built]
        return found

    def apply(self, path: pathlib.Path) -> State:
        """Return the state after all changes that are in the file; `path` of the folder.

        The state itself is not to be used any more, if this fails.
        """
        changes = self.build.changes.since(self.sequence)
        removed, vectors, rows = [], [], self.live.rows
        for change in changes:
            if change.question is None or change.vector is None:
                if not 0 <= change.row < rows:
                    raise _no_row(path, change)
                removed.append(change.row)
                if self.row_of.get(change.key) == change.row:
                    del self.row_of[change.key]
                continue
            if change.row != rows:
                raise _no_row(path, change)
            rows += 1
            self.row_of[change.key] = change.row
            self.added.append(change.question)
            vectors.append(change.vector)
        if not changes:
            return self
        if vectors:
            self.build.vectors.add(np.stack(vectors))
        return self._replace(
            live=self.live.changed(np.array(removed, np.int64), len(vectors)),
            sequence=changes[-1].sequence,
            next_id=max(self.next_id, after(change.key for change in changes)),
        )


def open_state(folder: pathlib.Path, encoders: Sequence[str], *, durable: bool) -> State:
    """Open the build of a folder, as it was before all changes.

    UserError if it is damaged, or of none of the `encoders`; without any, of all.
    """
    signature = manifest_signature(folder)
    build = open_build(folder, durable=durable)
    check_encoder(folder, build.manifest["encoder"], encoders)
    count = len(build.vectors.built)
    return State(build, signature, [], {}, Live(count, count), 0, build.manifest["next_id"])


def manifest_signature(folder: pathlib.Path) -> tuple[int, ...]:
    """Return what differs when the manifest of a folder was replaced."""
    facts = os.stat(f"{folder}/{MANIFEST}")  # joining paths would take longer
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def _no_row(path: pathlib.Path, change: Change) -> UserError:
    return UserError(
        f"{path}: change {change.sequence} is of row {change.row}, which is out of order",
        remedy="build the index again",
    )
