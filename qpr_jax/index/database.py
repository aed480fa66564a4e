"""SQLite files of an index: checked when opened, shared by threads, safe after a fork."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import sqlite3
import stat
import threading
import weakref
from collections.abc import Iterator

from qpr_jax.errors import UserError

_MAGIC, _ROLLBACK = b"SQLite format 3\0", b"\x01\x01"
_ERRNOS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.ENOENT,
}
_WAIT = 60.0  # seconds to wait for another process's change
_SURROGATES = re.compile("[\ud800-\udfff]")


class Connection(sqlite3.Connection):
    """A connection, with the `PRAGMA data_version` of its last look for changes."""

    seen = -1


class Database:
    """A file of a known schema. Each call borrows a connection of this process, and returns it."""

    def __init__(
        self, path: pathlib.Path, schema: list[str], *, immutable: bool, durable: bool = True
    ) -> None:
        """Open a file; UserError unless it is a whole plain file of this schema.

        immutable: the file never changes. durable: a change is on disk when it is committed.
        """
        self.path, self._immutable, self._durable = path, immutable, durable
        self._idle: list[Connection] = []
        self._foreign: list[list[Connection]] = []  # of the parent process; closing them harms it
        self._process = os.getpid()
        weakref.finalize(self, _close, self._idle, self._process)
        check_file(path)
        with self.connection() as connection:
            found = connection.execute("SELECT sql FROM sqlite_master ORDER BY rowid").fetchall()
        if found != [(line,) for line in schema]:
            raise damaged(path, "its tables are not those of an index")

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        """Yield a connection that no other thread has; UserError if the file is damaged."""
        if self._process != os.getpid():
            self._foreign.append(self._idle)
            self._idle, self._process = [], os.getpid()
            weakref.finalize(self, _close, self._idle, self._process)
        connection = None
        _enter()
        try:
            connection = self._idle.pop() if self._idle else self._open()
            yield connection
        except BaseException as error:
            if connection is not None:
                connection.close()
            if (translated := _translated(self.path, error)) is error:
                raise
            raise translated from error
        finally:
            _leave()
        self._idle.append(connection)

    def _open(self) -> Connection:
        mode = "mode=ro&immutable=1" if self._immutable else "mode=rw"
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?{mode}",
            _WAIT,
            isolation_level=None,
            check_same_thread=False,
            factory=Connection,
            uri=True,
        )
        connection.execute("PRAGMA trusted_schema = OFF")
        if self._immutable:  # mapped, a row is read without a system call
            connection.execute("PRAGMA mmap_size = 2147418112")
        connection.execute(f"PRAGMA synchronous = {'EXTRA' if self._durable else 'OFF'}")
        return connection


_gate = threading.Condition()
_users = 0  # threads that use SQLite


def _enter() -> None:
    global _users
    with _gate:
        _users += 1


def _leave() -> None:
    global _users
    with _gate:
        _users -= 1
        _gate.notify_all()


def _before_fork() -> None:
    """Wait until no thread uses SQLite: a child would inherit its locks and hang."""
    _gate.acquire()
    _gate.wait_for(lambda: not _users, timeout=_WAIT)


os.register_at_fork(
    before=_before_fork, after_in_parent=_gate.release, after_in_child=_gate.release
)


@contextlib.contextmanager
def created(path: pathlib.Path, schema: list[str]) -> Iterator[sqlite3.Connection]:
    """Create a file and yield a connection; the file is on disk when the context ends.

    OSError, which names the file, if the disk is full.
    """
    path.unlink(missing_ok=True)
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            for line in schema:
                connection.execute(line)
            yield connection
    except sqlite3.DatabaseError as error:
        raise _translated(path, error) from error
    sync(path)


def sync(path: pathlib.Path) -> None:
    """Wait until a file is on disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def check_file(path: pathlib.Path) -> None:
    """Raise a UserError unless the file is a plain one of SQLite, as long as its header says."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise damaged(path, "it is not a plain file")
    with open(path, "rb") as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(_MAGIC) or header[18:20] != _ROLLBACK:
        raise damaged(path, "it is not a file of SQLite")
    size, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
    size = 65_536 if size == 1 else size
    journal = path.with_name(f"{path.name}-journal")  # left by a kill; SQLite will apply it
    if path.stat().st_size != size * pages and not journal.exists():
        raise damaged(path, f"expected {size * pages:,} bytes, got {path.stat().st_size:,}")


def damaged(path: pathlib.Path, reason: str) -> UserError:
    """Return the error of a damaged file."""
    return UserError(f"{path}: {reason}", remedy="restore the file, or build the index again")


def cell(text: str) -> str | bytes:
    """Return a text as SQLite stores it: bytes if it has a lone surrogate."""
    if text.isascii() or not _SURROGATES.search(text):
        return text
    return text.encode("utf-8", "surrogatepass")


def text_of(value: str | bytes) -> str:
    """Return the text of a `cell`."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")


def _translated(path: pathlib.Path, error: BaseException) -> BaseException:
    """Return an OSError that names the file, a UserError for damage, or the error itself."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, ValueError | RecursionError):  # of a text or a payload
        return damaged(path, str(error))
    if not isinstance(error, sqlite3.DatabaseError):
        return error
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, f"{error!s:.200}")
    if code in _ERRNOS:
        return OSError(_ERRNOS[code], os.strerror(_ERRNOS[code]), str(path))
    return error


def _close(connections: list[Connection], process: int) -> None:
    if process == os.getpid():
        for connection in connections:
            connection.close()
