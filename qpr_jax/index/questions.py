"""The questions of an index in two files of SQLite.

`questions-BUILD.sqlite` never changes: the row, the key and the data of each question.
`changes-BUILD.sqlite` gets one transaction a change: a row that is added has data and a vector, one
that is removed has none. A row never means another question.

Data is the JSON of id, text and payload; a key is a number, or the JSON of a string.
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

from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST
from qpr_jax.ids import Id, id_key
from qpr_jax.index.protocol import Question, damaged
from qpr_jax.index.vectors import Live, Vectors

log = logging.getLogger("qpr_jax")

Key = int | str
Change = tuple[int, int, Key, Question | None, np.ndarray | None]  # its number, the row, ...

BUILT = "CREATE TABLE questions (row INTEGER PRIMARY KEY, key, data)"
BY_KEY = "CREATE UNIQUE INDEX by_key ON questions (key)"
CHANGES = "CREATE TABLE changes (sequence INTEGER PRIMARY KEY, row, key, data, vector)"
# Larger numbers are hashes or the like, which no counter should follow.
LARGEST_COUNTER = 2**53
MANY_ADDED = 50_000  # vectors; a search compares each of them
_CHUNK = 16_384  # questions that are read at once
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")  # how a journal ends that names another file
_WAIT = 60.0  # seconds to wait for another process's change
_JSON: dict[str, Any] = {
    "allow_nan": False,
    "ensure_ascii": False,
    "separators": (",", ":"),
    "default": operator.methodcaller("item"),  # numbers of NumPy
}
_DAMAGE = (sqlite3.DatabaseError, json.JSONDecodeError, UnicodeError, TypeError)

# Held by the thread that uses SQLite. A fork waits for it: a child would inherit SQLite's locks.
LOCK = threading.RLock()
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)
_inherited: list[sqlite3.Connection | None] = []  # of the parent process; closing them harms it


class RepeatedIdError(UserError):
    """Two questions of a build have one id: `id`; `row` is that of the second."""

    def __init__(self, id: Id, row: int) -> None:
        super().__init__(
            f"`ids`: expected distinct ids, got {id} twice",
            remedy="give each question its own id, or none",
        )
        self.id, self.row = id, row


class QuestionFiles:
    """The files of one build. One process writes at a time, and all see each other's changes."""

    def __init__(self, built: pathlib.Path, changes: pathlib.Path, dimension: int) -> None:
        """Open the files; UserError if one is damaged."""
        self._built, self._changes, self._dimension = built, changes, dimension
        self._connection: sqlite3.Connection | None = None
        self._process, self._seen = 0, -1
        with self._use() as connection:
            for name, path, schema in (
                ("built", built, [(BUILT,), (BY_KEY,)]),
                ("main", changes, [(CHANGES,)]),
            ):
                query = f"SELECT sql FROM {name}.sqlite_master ORDER BY rowid"
                if connection.execute(query).fetchall() != schema:
                    raise damaged(path, "its tables are not those of an index")

    def rows_of(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return the rows of the keys that the build has."""
        query = "SELECT key, row FROM questions WHERE key IN (SELECT value FROM json_each(?))"
        with self._use() as connection:
            return dict(connection.execute(query, (json.dumps(keys),)))

    def get(self, rows: Iterable[int]) -> dict[int, Question]:
        """Return the questions of rows of the build."""
        wanted = [*{*rows}]
        query = "SELECT row, data FROM questions WHERE row IN (SELECT value FROM json_each(?))"
        with self._use() as connection:
            stored = connection.execute(query, (json.dumps(wanted),)).fetchall()
            found = {row: Question(*json.loads(data)) for row, data in stored}
        if len(found) < len(wanted):
            raise damaged(self._built, "a question is missing")
        return found

    def changed(self) -> bool:
        """Return whether another process wrote a change since `changes`; takes microseconds."""
        with self._use() as connection:
            return self._version(connection) != self._seen

    def changes(self, sequence: int, rows: int) -> list[Change]:
        """Return the changes after one, oldest first; `rows`: how many there are before them.

        A row that was removed has no question and no vector.
        """
        query = "SELECT * FROM changes WHERE sequence > ? ORDER BY sequence"
        found: list[Change] = []
        with self._use() as connection:
            self._seen = self._version(connection)
            for number, row, key, data, vector in connection.execute(query, (sequence,)):
                if data is None and 0 <= row < rows:
                    found.append((number, row, key, None, None))
                elif data is not None and row == rows and len(vector) == 4 * self._dimension:
                    question = Question(*json.loads(data))
                    found.append((number, row, key, question, np.frombuffer(vector, np.float32)))
                    rows += 1
                else:
                    raise damaged(self._changes, f"change {number} fits no row")
        return found

    def write(
        self, removed: dict[Key, int], first: int, added: Sequence[Question], vectors: np.ndarray
    ) -> None:
        """Write one change: rows that go, and the questions of the rows from `first` on."""
        entries: list[tuple[object, ...]]
        entries = [(row, key, None, None) for key, row in removed.items()]
        for row, (question, vector) in enumerate(zip(added, vectors, strict=True), first):
            numbers = np.asarray(vector, np.float32).tobytes()
            entries.append((row, *_key_and_data(question), numbers))
        query = "INSERT INTO changes (row, key, data, vector) VALUES (?, ?, ?, ?)"
        with self._use() as connection:
            connection.execute("BEGIN IMMEDIATE")
            with connection:  # commits, or rolls back
                connection.executemany(query, entries)

    @contextlib.contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection of this process, which no other thread uses meanwhile."""
        with LOCK, _errors_of(self._changes):
            if self._process != os.getpid():
                _inherited.append(self._connection)
                self._connection, self._process = self._open(), os.getpid()
                weakref.finalize(self, _close, self._connection, self._process)
            assert self._connection is not None
            yield self._connection

    def _open(self) -> sqlite3.Connection:
        _refuse_super_journal(self._changes)
        built, changes = (path.absolute().as_uri() for path in (self._built, self._changes))
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False, "uri": True}
        connection = sqlite3.connect(f"{changes}?mode=rw", _WAIT, **options)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("ATTACH ? AS built", (f"{built}?mode=ro&immutable=1",))
        connection.execute("PRAGMA built.mmap_size = 2147418112")  # saves system calls
        return connection

    @staticmethod
    def _version(connection: sqlite3.Connection) -> int:
        return int(connection.execute("PRAGMA main.data_version").fetchone()[0])


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


def signature_of(folder: pathlib.Path) -> tuple[int, ...]:
    """Return what differs when the manifest of a folder was replaced."""
    try:
        facts = os.stat(f"{folder}/{MANIFEST}")  # joining paths would take longer
    except FileNotFoundError:
        return ()
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def _refuse_super_journal(changes: pathlib.Path) -> None:
    """Raise a UserError for a journal that makes SQLite remove the file that it names.

    Such a journal is of several files, and a change is in one file. It may be a stranger's.
    """
    journal = changes.with_name(f"{changes.name}-journal")
    with contextlib.suppress(FileNotFoundError), open(journal, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(_SUPER_JOURNAL)))
        if file.read() == _SUPER_JOURNAL:
            raise damaged(journal, "it names another file, which SQLite would remove")


def write_questions(
    built: pathlib.Path, changes: pathlib.Path, questions: Iterable[Question]
) -> tuple[int, int]:
    """Write the files of a new build; return the number of questions and the next id.

    UserError for two equal ids.
    """
    rows = next_id = 0

    def entries() -> Iterator[tuple[int, Key, bytes]]:
        nonlocal rows, next_id
        for question in questions:
            next_id = max(next_id, after(question.id))
            yield rows, *_key_and_data(question)
            rows += 1

    with _created(changes, CHANGES):
        pass
    with _created(built, BUILT) as connection:
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO questions VALUES (?, ?, ?)", entries())
        connection.execute("COMMIT")
        try:
            connection.execute(BY_KEY)
        except sqlite3.IntegrityError:
            query = "SELECT data, max(row) FROM questions GROUP BY key HAVING count(*) > 1 LIMIT 1"
            data, row = connection.execute(query).fetchone()
            raise RepeatedIdError(json.loads(data)[0], row) from None
    return rows, next_id


def stored_key(id: Id) -> Key:
    """Return what equal ids share, as the files have it."""
    key = id_key(id)
    return key if isinstance(key, int) else json.dumps(key)


def after(id: Id) -> int:
    """Return the number after an id that may come from a counter, 0 after another one."""
    key = id_key(id)
    return key + 1 if isinstance(key, int) and key < LARGEST_COUNTER else 0


def _key_and_data(question: Question) -> tuple[Key, bytes]:
    return stored_key(question.id), question_json(question).encode("utf-8", "surrogatepass")


def batches(rows: int, size: int) -> Iterator[range]:
    """Yield consecutive ranges of at most `size` rows."""
    return (range(start, min(start + size, rows)) for start in range(0, rows, size))


def question_json(question: Question) -> str:
    """Return the JSON of id, text and payload; UserError for a payload that JSON lacks."""
    fields = question.id, question.text, question.payload or None
    try:
        if not all(isinstance(name, str) for name in question.payload or ()):
            raise TypeError("a name is no string")
        return json.dumps(fields, **_JSON)
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        where = f"of question {question.id!r:.80}"
        raise UserError(f"`payload`: expected values of JSON, {where}: {error}") from None


@contextlib.contextmanager
def _created(path: pathlib.Path, schema: str) -> Iterator[sqlite3.Connection]:
    """Create a file and yield a connection; the file is on disk when the context ends."""
    path.unlink(missing_ok=True)
    with _errors_of(path), contextlib.closing(sqlite3.connect(path, isolation_level=None)) as new:
        new.execute("PRAGMA journal_mode = OFF")
        new.execute("PRAGMA synchronous = OFF")
        new.execute(schema)
        yield new
    with open(path, "rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _errors_of(path: pathlib.Path) -> Iterator[None]:
    """Raise an OSError that names the file, or a UserError for a damaged one."""
    try:
        yield
    except sqlite3.OperationalError as error:  # a full disk, a missing or a locked file
        missing = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN
        raise OSError(errno.ENOENT if missing else errno.EIO, str(error), str(path)) from error
    except _DAMAGE as error:
        raise damaged(path, f"{error!s:.200}") from error


def _close(connection: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():
        connection.close()
