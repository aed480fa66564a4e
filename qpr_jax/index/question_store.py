"""All questions of an index by row: those it was built of, and the changes since."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from qpr_jax.ids import Id, id_key
from qpr_jax.index.base import Payload, StoredQuestion
from qpr_jax.index.built_questions import BuiltQuestions
from qpr_jax.index.changes_file import Change, ChangesFile
from qpr_jax.index.database import damaged
from qpr_jax.index.payloads import parse_payload, payload_json

T = TypeVar("T")
_BLOCK = 4096


class Changes(NamedTuple):
    """Rows that came and went: int64 [n] added, their vectors float32 [n, d]; int64 [m] removed."""

    added: np.ndarray
    vectors: np.ndarray
    removed: np.ndarray


class QuestionStore:
    """Questions by row and by id.

    A row never means another question, so any number of threads may read while one changes; the
    one that changes holds the `WriteLock`.

    Attributes:
      sequence: the number of the last change.
      next_id: larger than every id that a question has had.
    """

    def __init__(
        self, built: BuiltQuestions, changes: ChangesFile | None = None, *, next_id: int = 0
    ) -> None:
        """Take the questions of a build; `changes_since` reads the changes of the file.

        changes: where changes are written; they stay in memory where None.
        """
        self._built, self._file = built, changes
        self._added: list[tuple[Id, str, str | None]] = []  # with the JSON of the payload
        self._added_rows: dict[Id, int] = {}  # by `id_key`
        self._removed = np.zeros(len(built), bool)
        self._removals: list[tuple[int, int]] = []  # sequence and row
        self.sequence = self._removed_count = 0
        self.next_id = max(next_id, 1 + built.largest_id)

    @property
    def rows(self) -> int:
        """How many rows there are; some of them may be removed."""
        return len(self._built) + len(self._added)

    @property
    def built_rows(self) -> int:
        """How many rows the build has; those after them were added since."""
        return len(self._built)

    @property
    def removed_rows(self) -> np.ndarray:
        """Whether each row was removed, bool [rows or more], to be read only."""
        return self._removed

    def counts(self) -> tuple[int, int]:
        """How many questions of the build were removed, and how many there are besides."""
        removed = int(self._removed[: len(self._built)].sum())
        return removed, len(self) - len(self._built) + removed

    def __len__(self) -> int:
        """How many questions there are."""
        return self.rows - self._removed_count

    def columns(self, rows: np.ndarray) -> tuple[list[Id], list[str], list[Payload | None]]:
        """The ids, texts and payloads of rows int64 [n], as of `get`."""
        if rows.max(initial=-1) < len(self._built):
            return self._built.columns(rows)
        found = self._joined(
            rows,
            lambda built: zip(*self._built.columns(built), strict=True),
            lambda added: (*added[:2], parse_payload(added[2])),
        )
        return [row[0] for row in found], [row[1] for row in found], [row[2] for row in found]

    def fields(self, rows: np.ndarray) -> tuple[list[Id], list[str]]:
        """The ids and texts of rows int64 [n], as of `get`."""
        if rows.max(initial=-1) < len(self._built):
            return self._built.fields(rows)
        found = self._joined(
            rows,
            lambda built: zip(*self._built.fields(built), strict=True),
            lambda added: added[:2],
        )
        return [value for value, _ in found], [question for _, question in found]

    def payloads(self, rows: np.ndarray) -> list[Payload | None]:
        """The payloads of rows int64 [n], as of `get`."""
        if rows.max(initial=-1) < len(self._built):
            return self._built.payloads(rows)
        return self._joined(rows, self._built.payloads, lambda added: parse_payload(added[2]))

    def _joined(
        self,
        rows: np.ndarray,
        of_built: Callable[[np.ndarray], Iterable[T]],
        of_added: Callable[[tuple[Id, str, str | None]], T],
    ) -> list[T]:
        """A value for each row, of the build or of what was added since."""
        size = len(self._built)
        built = iter(of_built(rows[rows < size]))
        return [
            next(built) if row < size else of_added(self._added[row - size])
            for row in rows.tolist()
        ]

    def __iter__(self) -> Iterator[StoredQuestion]:
        """All questions, in the order in which they came."""
        rows = self.live_rows()
        for start in range(0, len(rows), _BLOCK):
            yield from self.get(rows[start : start + _BLOCK])

    def live_rows(self) -> np.ndarray:
        """The rows of all questions, int64 [n], in order."""
        return np.flatnonzero(~self._removed[: self.rows])

    def get(self, rows: Sequence[int] | np.ndarray) -> list[StoredQuestion]:
        """The questions of rows, which may be removed; UserError where one is damaged."""
        return [*map(StoredQuestion, *self.columns(np.asarray(rows, np.int64)))]

    def rows_of(self, ids: Sequence[Id]) -> np.ndarray:
        """The row of each id, int64 [n], -1 where no question has it."""
        rows = zip(ids, self._built.rows_of(ids).tolist(), strict=True)
        return np.array([self._live_row(value, built) for value, built in rows], np.int64)

    def _live_row(self, value: Id, built_row: int) -> int:
        """The row of an id, of which the build has `built_row`; -1 where no question has it."""
        row = self._added_rows.get(id_key(value), built_row)
        return -1 if row < 0 or self._removed[row] else row

    def change(
        self, add: Sequence[StoredQuestion], vectors: np.ndarray, remove: Sequence[Id] = ()
    ) -> np.ndarray:
        """Remove questions, then add others; one whose id is there replaces the old one.

        The change is on disk when this returns, if the store has a file; where it raises, nothing
        has changed there.

        Args:
          add: questions with distinct ids.
          vectors: float32 [n, d] of these.
          remove: ids; one that no question has changes nothing.

        Returns:
          The rows of the questions that were added, int64 [n].
        """
        rows = self.rows_of(remove).tolist()
        gone = [(row, value, None) for row, value in zip(rows, remove, strict=True) if row >= 0]
        changes = [Change(number, *fields) for number, fields in enumerate(gone, self.sequence + 1)]
        first, number = self.rows, self.sequence + len(gone) + 1
        data = np.ascontiguousarray(vectors, "<f4")
        texts = [payload_json(payload, f"of the id {value}") for value, _, payload in add]
        changes += [
            Change(number + i, first + i, question.id, question.question, text, vector.tobytes())
            for i, (question, text, vector) in enumerate(zip(add, texts, data, strict=True))
        ]
        if self._file and changes:
            self._file.append(changes)
        self._apply(changes)
        return np.arange(first, first + len(add))

    def changes_since(self, sequence: int) -> Changes:
        """What changed after this change, by other processes, or before the file was first read."""
        changes = self._file.read_new() if self._file else []
        self._apply(changes)
        added = [(change.row, change.vector) for change in changes if change.vector is not None]
        rows, vectors = zip(*added, strict=True) if added else ((), ())
        return Changes(
            np.array(rows, np.int64),
            np.frombuffer(b"".join(vectors), "<f4").reshape(len(rows), -1 if rows else 0),
            self.removed_since(sequence),
        )

    def removed_since(self, sequence: int) -> np.ndarray:
        """The rows that were removed after this change, int64 [n]."""
        recent = itertools.takewhile(lambda item: item[0] > sequence, reversed(self._removals))
        return np.array([row for _, row in recent], np.int64)

    def removed_until(self, sequence: int) -> np.ndarray:
        """The rows of the build, or added since, that were removed up to this change, int64 [n]."""
        first = itertools.takewhile(lambda item: item[0] <= sequence, self._removals)
        return np.array([row for _, row in first], np.int64)

    def check_integrity(self) -> None:
        """Raise a UserError where a check of all records, and SQLite's own, find damage."""
        self._built.check_integrity()
        if self._file:
            self._file.check_integrity()

    def _apply(self, changes: Sequence[Change]) -> None:
        """Take changes, which are on disk, into memory."""
        built_rows = self._built.rows_of([change.id for change in changes]).tolist()
        for (number, row, value, question, payload, _), built_row in zip(
            changes, built_rows, strict=True
        ):
            old = self._live_row(value, built_row)
            if (question is None and row != old) or (question is not None and row != self.rows):
                path = self._file.path if self._file else pathlib.Path(":memory:")
                raise damaged(path, f"change {number} does not fit the ones before")
            if old >= 0:
                self._removed[old] = True
                self._removed_count += 1
                self._removals.append((number, old))
            if question is not None:
                self._append(row, value, question, payload)
            self.sequence = number

    def _append(self, row: int, value: Id, question: str, payload: str | None) -> None:
        if row >= len(self._removed):
            more = np.zeros(max(1024, len(self._removed)), bool)
            self._removed = np.concatenate([self._removed, more])
        self._added.append((value, question, payload))
        key = id_key(value)
        self._added_rows[key] = row
        if not isinstance(key, str):
            self.next_id = max(self.next_id, key + 1)
