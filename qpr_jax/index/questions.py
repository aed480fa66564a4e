"""The questions of an index in SQLite: those of a build, and what changed since.

`questions-BUILD.sqlite` never changes. `changes-BUILD.sqlite` gets one transaction a change: a row
that is added has a text and a vector, one that is removed has none. A row never means another
question.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.ids import Id, id_key
from qpr_jax.index import database
from qpr_jax.index.base import Hit, Question
from qpr_jax.index.database import Connection, Database, cell, text_of
from qpr_jax.index.payloads import payload_json

# `key`: `ids.id_key` of the id. `id`: NULL if it is the key.
BUILT = ["CREATE TABLE questions (row INTEGER PRIMARY KEY, key, id, text, payload)"]
BY_KEY = "CREATE UNIQUE INDEX by_key ON questions (key)"
CHANGES = [
    "CREATE TABLE changes (sequence INTEGER PRIMARY KEY, row, key, id, text, payload, vector)"
]
# Larger numbers are hashes or the like, which no counter should follow.
LARGEST_COUNTER = 2**53
_SOME = 500  # rows of a query
_MANY = 10_000  # rows of a transaction


class RepeatedIdError(UserError):
    """Two questions of a build have one id: `id`; `row` is that of the second."""

    def __init__(self, id: Id, row: int) -> None:
        super().__init__(
            f"`ids`: expected distinct ids, got {id} twice",
            remedy="give each question its own id, or none",
        )
        self.id, self.row = id, row


class Change(NamedTuple):
    """An entry of the changes: a row that was added with its question and vector, or removed."""

    sequence: int
    row: int
    key: Id
    question: Question | None
    vector: np.ndarray | None


class BuiltQuestions:
    """The questions of a build by row and by id."""

    def __init__(self, path: pathlib.Path, count: int) -> None:
        """Open the file; UserError if it is damaged or has not `count` questions."""
        self._database = Database(path, [*BUILT, BY_KEY], immutable=True)
        with self._database.connection() as connection:
            (last,) = connection.execute("SELECT max(row) FROM questions").fetchone()
        if count != (0 if last is None else last + 1):
            raise database.damaged(path, f"expected {count:,} questions, got another number")

    def rows_of(self, keys: Sequence[Id]) -> dict[Id, int]:
        """Return the row of each of the keys that are there."""
        found: dict[Id, int] = {}
        with self._database.connection() as connection:
            for some in _parts([_key_cell(key) for key in keys]):
                query = f"SELECT key, row FROM questions WHERE key IN ({_marks(some)})"
                found.update((_key(key), row) for key, row in connection.execute(query, some))
        return found

    def get(self, rows: Iterable[int]) -> dict[int, Question]:
        """Return the questions of rows."""
        found, wanted = {}, sorted({*rows})
        with self._database.connection() as connection:
            for some in _parts(wanted):
                query = f"SELECT * FROM questions WHERE row IN ({_marks(some)})"
                for row, key, id, text, stored in connection.execute(query, some).fetchall():
                    found[row] = _question(key, id, text, stored)
        if len(found) < len(wanted):
            raise database.damaged(self._database.path, "a question is missing")
        return found

    def texts(self, rows: range) -> list[str]:
        """Return the texts of consecutive rows."""
        query = "SELECT text FROM questions WHERE row >= ? AND row < ? ORDER BY row"
        with self._database.connection() as connection:
            found = connection.execute(query, (rows.start, rows.stop)).fetchall()
        return [text_of(text) for (text,) in found]


class ChangedQuestions:
    """The file of changes; one process writes at a time, and all see each other's changes."""

    def __init__(self, path: pathlib.Path, dimension: int, *, durable: bool) -> None:
        """Open the file; UserError if it is damaged."""
        self._database = Database(path, CHANGES, immutable=False, durable=durable)
        self._dimension = dimension

    def may_have_changed(self) -> bool:
        """Return whether another connection committed since this one asked; costs microseconds."""
        with self._database.connection() as connection:
            return _look(connection)

    def since(self, sequence: int) -> list[Change]:
        """Return the entries after one, oldest first; UserError if one is damaged."""
        query = "SELECT * FROM changes WHERE sequence > ? ORDER BY sequence"
        with self._database.connection() as connection:
            _look(connection)
            return [self._change(*fields) for fields in connection.execute(query, (sequence,))]

    def write(
        self,
        removed: Sequence[tuple[int, Id]],
        added: Sequence[tuple[int, Question]],
        vectors: np.ndarray,
    ) -> None:
        """Write one change: (row, key) of removed rows, (row, question) and vectors of new ones."""
        entries: list[tuple[Any, ...]]
        entries = [(row, _key_cell(key), None, None, None, None) for row, key in removed]
        for (row, question), vector in zip(added, vectors, strict=True):
            entries.append((row, *_fields(question), vector.astype(np.float32).tobytes()))
        with self._database.connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO changes (row, key, id, text, payload, vector) VALUES (?,?,?,?,?,?)",
                entries,
            )
            connection.execute("COMMIT")

    def _change(
        self, sequence: int, row: int, key: Any, id: Any, text: Any, payload: Any, vector: Any
    ) -> Change:
        if text is None:
            return Change(sequence, row, _key(key), None, None)
        if not isinstance(vector, bytes) or len(vector) != 4 * self._dimension:
            raise database.damaged(self._database.path, f"change {sequence} has no vector")
        numbers = np.frombuffer(vector, np.float32)
        return Change(sequence, row, _key(key), _question(key, id, text, payload), numbers)


def write_questions(path: pathlib.Path, questions: Iterable[Question]) -> tuple[int, int]:
    """Write the questions of a build; return their number and the next id.

    UserError for two equal ids, and for a payload that is not JSON.
    """
    rows, next_id = 0, 0
    with database.created(path, BUILT) as connection:
        stream = iter(questions)
        while some := [*itertools.islice(stream, _MANY)]:
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO questions VALUES (?,?,?,?,?)",
                ((rows + i, *_fields(question)) for i, question in enumerate(some)),
            )
            connection.execute("COMMIT")
            rows += len(some)
            next_id = max(next_id, after(question.id for question in some))
        try:
            connection.execute(BY_KEY)
        except sqlite3.IntegrityError:
            again = "SELECT key, max(row) FROM questions GROUP BY key HAVING count(*) > 1 LIMIT 1"
            key, row = connection.execute(again).fetchone()
            raise RepeatedIdError(_key(key), row) from None
    return rows, next_id


def write_changes(path: pathlib.Path) -> None:
    """Create the file of changes, without any."""
    with database.created(path, CHANGES):
        pass


def after(ids: Iterable[Id]) -> int:
    """Return the number after the largest of the ids that may come from a counter."""
    numbers = (key for key in map(id_key, ids) if isinstance(key, int) and key < LARGEST_COUNTER)
    return max(numbers, default=-1) + 1


def as_hits(
    distances: np.ndarray, rows: np.ndarray, questions: dict[int, Question]
) -> list[list[Hit]]:
    """Join distances [n, k] and rows [n, k], -1 for none, to the questions of the rows."""
    hits = []
    for own, near in zip(rows.tolist(), distances.tolist(), strict=True):
        pairs = [(*questions[row], at) for row, at in zip(own, near, strict=True) if row >= 0]
        hits.append([Hit(id, text, at, None, payload) for id, text, payload, at in pairs])
    return hits


def batches(rows: int, size: int) -> Iterator[range]:
    """Yield consecutive ranges of at most `size` rows."""
    return (range(start, min(start + size, rows)) for start in range(0, rows, size))


def _fields(question: Question) -> tuple[Any, ...]:
    """Return key, id, text and payload of a question as they are stored."""
    key = id_key(question.id)
    id = None if key == question.id and type(key) is type(question.id) else question.id
    payload = payload_json(question.payload, f"of question {question.id!r:.80}")
    stored = None if payload is None else cell(payload)
    return _key_cell(key), None if id is None else cell(str(id)), cell(question.text), stored


def _question(key: Any, id: Any, text: Any, payload: Any) -> Question:
    if id is None and payload is None and type(text) is str and type(key) is not bytes:
        return Question(key, text)  # most are, and this takes a third of the time
    given = _key(key) if id is None else text_of(id)
    fields = None if payload is None else json.loads(text_of(payload))
    return Question(given, text_of(text), fields)


def _key_cell(key: Id) -> int | str | bytes:
    return key if isinstance(key, int) else cell(key)


def _key(stored: Any) -> Id:
    return stored if isinstance(stored, int) else text_of(stored)


def _look(connection: Connection) -> bool:
    """Return whether the file changed since the last look of this connection."""
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    changed = version != connection.seen
    connection.seen = version
    return bool(changed)


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[start : start + _SOME] for start in range(0, len(values), _SOME))


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))
