"""The questions of a build in a file of SQLite, which never changes, and the state of an index.

A question has a row, a key and data, the JSON of id, text and payload. A key is a number, or the
JSON of a string. A row never means another question. With t texts a question has t rows, one for
each vector, and the first of them, a multiple of t, stands for all.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import operator
import os
import pathlib
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.entries import Id, id_key
from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST
from qpr_jax.index.changes import Changes
from qpr_jax.index.protocol import Hit, Question, damaged
from qpr_jax.index.vectors import Live, Vectors

log = logging.getLogger("qpr_jax")

Key = int | str

BUILT = "CREATE TABLE questions (row INTEGER PRIMARY KEY, key, data)"
BY_KEY = "CREATE UNIQUE INDEX by_key ON questions (key)"
# Larger numbers are hashes or the like, which no counter should follow.
LARGEST_COUNTER = 2**53
MANY_ADDED = 50_000  # vectors; a search compares each of them
_CHUNK = 16_384  # questions that are read at once
_JSON: dict[str, Any] = {
    "allow_nan": False,
    "ensure_ascii": False,
    "separators": (",", ":"),
    "default": operator.methodcaller("item"),  # numbers of NumPy
}
_LEVELS = 100  # of a payload; Python's parser of JSON fails at about 1,000
_ERRORS = {
    sqlite3.SQLITE_CANTOPEN: errno.ENOENT,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_FULL: errno.ENOSPC,
}

# Held by the thread that uses SQLite. A fork waits for it: a child would inherit SQLite's locks.
LOCK = threading.RLock()
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)
_inherited: list[sqlite3.Connection | None] = []  # of the parent process; closing them harms it


class RepeatedIdError(UserError):
    """Two questions of a build have one id: `id`; `row` is the position of the second."""

    def __init__(self, id: Id, row: int) -> None:
        super().__init__(
            f"`ids`: expected distinct ids, got {id} twice",
            remedy="give each question its own id, or none",
        )
        self.id, self.row = id, row


class QuestionFile:
    """The questions of one build."""

    def __init__(self, path: pathlib.Path) -> None:
        """Open a file; UserError if it is damaged."""
        self._path, self._process = path, 0
        self._connection: sqlite3.Connection | None = None
        with self._use() as connection:
            query = "SELECT sql FROM sqlite_master ORDER BY rowid"
            if connection.execute(query).fetchall() != [(BUILT,), (BY_KEY,)]:
                raise damaged(path, "its tables are not those of an index")

    def rows_of(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return the rows of the keys that it has."""
        query = "SELECT key, row FROM questions WHERE key IN (SELECT value FROM json_each(?))"
        with self._use() as connection:
            return dict(connection.execute(query, (json.dumps(keys),)))

    def get(self, rows: Iterable[int]) -> dict[int, Question]:
        """Return the questions of rows."""
        wanted = [*{*rows}]
        query = "SELECT row, data FROM questions WHERE row IN (SELECT value FROM json_each(?))"
        with self._use() as connection:
            stored = connection.execute(query, (json.dumps(wanted),)).fetchall()
        found = {row: parse_question(data, self._path) for row, data in stored}
        if len(found) < len(wanted):
            raise damaged(self._path, "a question is missing")
        return found

    @contextlib.contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection of this process, which no other thread uses meanwhile."""
        with LOCK, _errors_of(self._path):
            if self._process != os.getpid():
                _inherited.append(self._connection)
                self._connection, self._process = self._open(), os.getpid()
                weakref.finalize(self, _close, self._connection, self._process)
            assert self._connection is not None
            yield self._connection

    def _open(self) -> sqlite3.Connection:
        # The file never changes, so SQLite needs no locks, and heeds no journal beside it.
        address = f"{self._path.absolute().as_uri()}?mode=ro&immutable=1"
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False, "uri": True}
        connection = sqlite3.connect(address, **options)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA mmap_size = 2147418112")  # saves system calls
        return connection


class State(NamedTuple):
    """A build, and the changes since, applied in their order."""

    manifest: dict[str, Any]
    signature: tuple[int, ...]
    built: QuestionFile
    changes: Changes
    vectors: Vectors
    added: list[Question]  # behind those of the build, by row
    row_of: dict[Key, int]  # of the keys of what was added
    live: Live  # the rows that can be found, all of a question or none
    mark: bytes  # how far the changes go that are in it
    next_id: int

    @property
    def texts(self) -> int:
        """Number of rows of a question."""
        return 1 + len(self.vectors.index_config.text_columns)

    def rows_of(self, ids: Iterable[Id]) -> dict[Key, int]:
        """Return the rows of the ids that are there, by their keys."""
        keys = {stored_key(id) for id in ids}
        found = {key: self.row_of[key] for key in keys if key in self.row_of}
        mask = self.live.mask
        for key, row in self.built.rows_of([*keys.difference(found)]).items():
            if mask is None or mask[row]:
                found[key] = row
        return found

    def questions(self, rows: Sequence[int]) -> dict[int, Question]:
        """Return the questions of rows, removed ones included."""
        built = len(self.vectors.built)
        found = self.built.get([row for row in rows if row < built])
        step = self.texts
        found.update((row, self.added[(row - built) // step]) for row in rows if row >= built)
        return found

    def blocks(self) -> Iterator[tuple[np.ndarray, list[Question]]]:
        """Yield the rows that can be found, int64 [m], and their questions, some at a time."""
        mask, step = self.live.mask, self.texts
        for part in batches(self.live.rows, _CHUNK * step):
            rows = np.arange(part.start, part.stop, step)
            rows = rows if mask is None else rows[mask[rows]]
            found = self.questions(rows.tolist())
            yield rows, [found[row] for row in rows.tolist()]

    def apply(self) -> State:
        """Return the state after all changes in the file; do not use this one if it fails."""
        mark, changes = self.changes.read(self.mark)
        if not changes:
            return self
        rows, next_id, step = self.live.rows, self.next_id, self.texts
        removed, vectors = list[int](), list[np.ndarray]()
        for row, data, vector in changes:
            if data and row == rows + len(vectors) * step:
                question = parse_question(data, self.changes.path)
                self.row_of[stored_key(question.id)] = row
                self.added.append(question)
                vectors.append(vector)
                next_id = max(next_id, after(question.id))
            elif not data and row < rows + len(vectors) * step:
                removed += range(row, row + step)
                if (at := row - len(self.vectors.built)) >= 0:
                    key = stored_key(self.added[at // step].id)
                    if self.row_of.get(key) == row:
                        del self.row_of[key]
            else:
                raise damaged(self.changes.path, f"no change can be of row {row}")
        if vectors:
            before = self.vectors.added
            self.vectors.add(np.concatenate(vectors).reshape(len(vectors) * step, -1))
            if before <= MANY_ADDED < self.vectors.added:
                log.warning("many questions were added; `qpr compact` makes searches fast")
        live = self.live.changed(np.array(removed, np.int64), len(vectors) * step)
        return self._replace(live=live, mark=mark, next_id=next_id)


def signature_of(folder: pathlib.Path) -> tuple[int, ...]:
    """Return what differs when the manifest of a folder was replaced."""
    try:
        facts = os.stat(f"{folder}/{MANIFEST}")  # joining paths would take longer
    except FileNotFoundError:
        return ()
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def write_questions(
    path: pathlib.Path, questions: Iterable[Question], step: int = 1
) -> tuple[int, int]:
    """Write the file of a new build; return the number of questions and the next id.

    UserError for two equal ids.
    step: rows of a question.
    """
    rows = next_id = 0

    def entries() -> Iterator[tuple[int, Key, bytes]]:
        nonlocal rows, next_id
        for question in questions:
            next_id = max(next_id, after(question.id))
            yield rows, stored_key(question.id), question_json(question)
            rows += step

    with _errors_of(path):
        open(path, "xb").close()  # with the permissions that the umask gives; SQLite keeps them
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(BUILT)
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO questions VALUES (?, ?, ?)", entries())
            connection.execute("COMMIT")
            try:
                connection.execute(BY_KEY)
            except sqlite3.IntegrityError:
                query = "SELECT data, max(row) FROM questions GROUP BY key HAVING count(*) > 1"
                data, row = connection.execute(f"{query} LIMIT 1").fetchone()
                raise RepeatedIdError(parse_question(data, path).id, row // step) from None
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return rows // step, next_id


def stored_key(id: Id) -> Key:
    """Return what equal ids share, as the files have it."""
    key = id_key(id)
    return key if isinstance(key, int) else json.dumps(key)


def after(id: Id) -> int:
    """Return the number after an id that may come from a counter, 0 after another one."""
    key = id_key(id)
    return key + 1 if isinstance(key, int) and key < LARGEST_COUNTER else 0


def question_json(question: Question) -> bytes:
    """Return the JSON of id, text and payload; UserError for a payload that JSON lacks."""
    fields = question.id, question.text, question.payload or None
    try:
        if not all(isinstance(name, str) for name in question.payload or ()):
            raise TypeError("a name is no string")
        if _is_deep(question.payload, _LEVELS):
            raise TypeError(f"lists or objects lie in more than {_LEVELS} others")
        return json.dumps(fields, **_JSON).encode("utf-8", "surrogatepass")
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        where = f"of question {question.id!r:.80}"
        raise UserError(f"`payload`: expected values of JSON, {where}: {error}") from None


def _is_deep(value: object, levels: int) -> bool:
    """Return whether lists and objects lie in more than so many others."""
    if not isinstance(value, dict | list | tuple):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return levels < 0 or any(_is_deep(part, levels - 1) for part in parts)


def parse_question(data: Any, path: pathlib.Path) -> Question:
    """Parse what `question_json` wrote to a file; UserError for anything else."""
    try:
        id, text, payload = json.loads(data)
        types = type(id), type(text), type(payload)
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged(path, f"a question is damaged ({error!s:.200})") from None
    if types[0] not in (int, str) or types[1] is not str or types[2] not in (dict, type(None)):
        raise damaged(path, "a question is damaged: expected an id, a text and a payload")
    return Question(id, text, payload)


def as_hit(question: Question, distance: float, column: str | None) -> Hit:
    """Return a question as the hit of its text in a column; None or a blank one: of its own."""
    id, text, payload = question
    column = column if column and question.text_in(column) else None
    return Hit(id, text, distance, None, payload, column)


def batches(rows: int, size: int) -> Iterator[range]:
    """Yield consecutive ranges of at most `size` rows."""
    return (range(start, min(start + size, rows)) for start in range(0, rows, size))


@contextlib.contextmanager
def _errors_of(path: pathlib.Path) -> Iterator[None]:
    """Raise an OSError that names the file, or a UserError for a damaged one."""
    try:
        yield
    except sqlite3.Error as error:
        number = _ERRORS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if number is None:
            raise damaged(path, f"{error!s:.200}") from error
        raise OSError(number, str(error), str(path)) from error


def _close(connection: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():
        connection.close()
