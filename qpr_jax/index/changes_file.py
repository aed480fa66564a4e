"""What was added and removed since the build, in one SQLite file of the index.

Read whole and checked before it is relied on, since a damaged database can lose rows in silence:
each row has a CRC, the sequence has no gaps, and the header (`user_version`) says where it ends.
A change is one transaction, so a kill leaves all of it or none.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.ids import Id
from qpr_jax.index.database import (
    Value,
    connect,
    damaged,
    from_sql,
    integrity,
    sqlite_errors,
    sync_file,
    to_sql,
)

NAME = "changes-{}.sqlite"
JOURNAL = "-journal"
_COLUMNS = "sequence, row, id, text, payload, vector, crc"
_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE changes (sequence INTEGER PRIMARY KEY, row, id, text, payload, vector, crc);
"""


class Change(NamedTuple):
    """A question that was added as `row`, or, without its text, the `row` that was removed.

    payload: its JSON; vector: the bytes of float32 [d]; both of a question that was added.
    """

    sequence: int
    row: int
    id: Id
    question: str | None
    payload: str | None = None
    vector: bytes | None = None


class ChangesFile:
    """The file of changes, as this process last read or wrote it.

    Writing needs the folder's `WriteLock`. sequence: of the last change; the first is 1.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.sequence = path, 0
        self._crc = 0  # of the CRCs of all changes
        self._state: tuple[int, ...] = ()
        self._writer: sqlite3.Connection | None = None

    @staticmethod
    def create(path: pathlib.Path) -> None:
        """Write a file without changes."""
        with sqlite_errors(path), contextlib.closing(connect(path, "mode=rwc")) as database:
            database.executescript(_SCHEMA)
        sync_file(path)

    def read_new(self) -> list[Change]:
        """The changes after `sequence`, which other processes made, and all before the first read.

        A UserError where the file is damaged, or has less than it had.
        """
        if self._is_current():
            return []
        self._close_writer()  # it may remember pages that are others now
        state = self._stat()
        with self._read_copy() as database:
            ((last,),) = database.execute("PRAGMA user_version").fetchall()
            rows = database.execute(f"SELECT {_COLUMNS} FROM changes ORDER BY sequence").fetchall()
        self._check(rows, last)
        new = [_from_row(row) for row in rows[self.sequence :]]
        self.sequence, self._crc = last, _chain(0, rows)
        self._state = state
        return new

    def append(self, changes: Sequence[Change]) -> None:
        """Write changes, numbered from the next of `sequence`; they are on disk when this returns.

        All or, where it raises, none.
        """
        rows = [_to_row(change) for change in changes]
        last = self.sequence + len(rows)
        with sqlite_errors(self.path):
            if self._writer is None:
                self._writer = connect(self.path, "mode=rw")
                self._writer.execute("PRAGMA synchronous = FULL")
                # The end of a change is on disk when its journal is: SQLite syncs the header of one
                # that stays, but not the folder of one that it removes.
                self._writer.execute("PRAGMA journal_mode = PERSIST")
            database = self._writer
            try:
                database.execute("BEGIN IMMEDIATE")
                database.executemany("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
                database.execute(f"PRAGMA user_version = {last:d}")
                database.execute("COMMIT")
            except BaseException:
                self._close_writer()  # which rolls back
                raise
        self.sequence, self._crc = last, _chain(self._crc, rows)
        self._state = self._stat()

    def check_integrity(self) -> None:
        """Raise a UserError where SQLite's own check finds damage."""
        with self._read_copy() as database:
            integrity(database, self.path)

    def _is_current(self) -> bool:
        """Whether nothing touched the file since this process read or wrote it."""
        if self._stat() != self._state:
            return False
        if self._writer is None:
            return True
        with sqlite_errors(self.path):  # the clock of the file system may be too coarse
            return self._writer.execute("PRAGMA user_version").fetchall() == [(self.sequence,)]

    def _stat(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise UserError(
                f"{self.path}: the file is missing", remedy="remake the folder"
            ) from None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _check(self, rows: list[tuple[Value, ...]], last: int) -> None:
        for number, row in enumerate(rows, start=1):
            if row[0] != number or row[-1] != _crc(row[:-1]):
                raise damaged(self.path, f"change {number} differs from its CRC")
        if len(rows) != last:
            raise damaged(self.path, f"expected {last} changes, got {len(rows)}")
        if last < self.sequence or _chain(0, rows[: self.sequence]) != self._crc:
            raise UserError(
                f"{self.path}: expected the {self.sequence} changes that were read before, got "
                "others",
                remedy="restore the file, or load the index again",
            )

    @contextlib.contextmanager
    def _read_copy(self) -> Iterator[sqlite3.Connection]:
        """A connection that reads the file as of one moment, without what a kill left half done."""
        with contextlib.ExitStack() as stack:
            path, mode = self.path, "mode=rw"  # to roll back what a kill left
            if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
                mode = "mode=ro"
                journal = path.with_name(path.name + JOURNAL)
                if journal.exists() and journal.stat().st_size:
                    copies = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
                    for file in (path, journal):
                        shutil.copyfile(file, copies / file.name)
                    path, mode = copies / path.name, "mode=rw"
            with sqlite_errors(self.path):
                database = stack.enter_context(contextlib.closing(connect(path, mode)))
                database.execute("BEGIN")
                yield database

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _to_row(change: Change) -> tuple[Value, ...]:
    sequence, row, value, text, payload, vector = change
    if type(value) not in (int, str):  # SQLite would store the bytes of a number of NumPy
        raise TypeError(f"an id is an int or a str, got {type(value).__name__}")
    stored: tuple[Value, ...] = (
        *(sequence, row, value if isinstance(value, int) else to_sql(value)),
        *(to_sql(text), to_sql(payload) if payload is not None else None, vector),
    )
    return (*stored, _crc(stored))


def _from_row(stored: tuple[Value, ...]) -> Change:
    sequence, row, value, text, payload, vector, _ = stored
    return Change(sequence, row, from_sql(value), from_sql(text), from_sql(payload), vector)  # type: ignore[arg-type]


def _crc(stored: tuple[Value, ...]) -> int:
    start, vector = zlib.crc32(ascii(stored[:-1]).encode()), stored[-1]
    return zlib.crc32(vector, start) if isinstance(vector, bytes) else start


def _chain(start: int, rows: Sequence[tuple[Value, ...]]) -> int:
    return zlib.crc32(np.array([row[-1] for row in rows], "<i8").tobytes(), start)
