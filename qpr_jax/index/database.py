"""SQLite as the index uses it: how a file is opened, what its errors mean, strings as stored."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import sqlite3
from collections.abc import Iterator

from qpr_jax.errors import UserError
from qpr_jax.files import name_in_errors

TIMEOUT = 30.0  # seconds that a process waits for another's transaction

Value = int | str | bytes | None


def connect(path: pathlib.Path, mode: str) -> sqlite3.Connection:
    """Open a database; begin and end transactions by SQL.

    While a connection is open, the process must not open the file in any other way than by SQLite:
    closing it would drop the locks of the connection.
    """
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=TIMEOUT,
        isolation_level=None,
        check_same_thread=False,
    )


@contextlib.contextmanager
def sqlite_errors(path: pathlib.Path) -> Iterator[None]:
    """Raise the errors of SQLite as OSError or UserError that name the file."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_FULL":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        if name.startswith(("SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
            raise OSError(errno.EIO, str(error), str(path)) from error
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise UserError(
                f"{path}: expected other processes to be done with it within {TIMEOUT:g} s",
                remedy="stop the process that holds it, or wait for its end",
            ) from error
        if not path.is_file():
            raise UserError(f"{path}: the file is missing", remedy="remake the folder") from error
        raise damaged(path, str(error)) from error
    except UnicodeDecodeError as error:  # of a name in the file
        raise damaged(path, "a name is not UTF-8") from error


def sync_file(path: pathlib.Path) -> None:
    """Wait until a file, which no one has open, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with name_in_errors(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def damaged(path: pathlib.Path, reason: str) -> UserError:
    """The error of a database whose content cannot be what was written."""
    return UserError(
        f"{path}: expected an undamaged file ({reason})",
        remedy="restore the file, or build the index again",
    )


def integrity(connection: sqlite3.Connection, path: pathlib.Path) -> None:
    """Raise a UserError where SQLite's own check of a whole file finds damage."""
    with sqlite_errors(path):
        ((result,), *_) = connection.execute("PRAGMA integrity_check").fetchall()
    if result != "ok":
        raise damaged(path, result.partition("\n")[0])


def encode_text(text: str) -> bytes:
    """UTF-8 of any string, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    """The string of `encode_text`."""
    return data.decode("utf-8", "surrogatepass")


def to_sql(value: int | str | None) -> Value:
    """A value as it is stored: a string that is no valid Unicode as BLOB."""
    if not isinstance(value, str):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return encode_text(value)
    return value


def from_sql(value: Value) -> int | str | None:
    """The value that `to_sql` stored."""
    return decode_text(value) if isinstance(value, bytes) else value
