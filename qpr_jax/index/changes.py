"""What was added to an index and removed from it since its build, in a file that only grows.

The file is a header and changes. The header has the number of bytes of all changes, their CRC-32
and its own. A change is rows: each has its number, the size of its data, the data and the vector. A
row that is removed has no data.

A writer appends its change and syncs it; then it replaces the header and syncs that. The header
lies in one sector of a disk, which is written as a whole. So a reader needs no lock and no right to
write: what the header does not count is of a writer that was killed.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import struct
import time
import weakref
import zlib
from collections.abc import Iterable

import numpy as np

from qpr_jax.encoders.encoder import sync
from qpr_jax.files import name_in_errors, require_file
from qpr_jax.index.protocol import damaged

_MAGIC = b"qpr log1"
_HEADER = struct.Struct("<8sQII")  # magic, bytes of the changes, their CRC, CRC of the header
_ROW = struct.Struct("<QI")  # the row, the size of its data
_TRIES = 100  # of a header that another process is replacing, a millisecond each

Change = tuple[int, bytes, np.ndarray]  # the row, its data and its vector; neither if it goes


def _header(size: int, crc: int) -> bytes:
    data = _HEADER.pack(_MAGIC, size, crc, 0)[:-4]
    return data + struct.pack("<I", zlib.crc32(data))


NONE = _header(0, 0)  # the mark of no changes


class Changes:
    """The file of changes of one build. One process writes at a time, and many read."""

    def __init__(self, path: pathlib.Path, dimension: int) -> None:
        """Open a file; UserError if it is missing or damaged."""
        self.path, self._vector = path, 4 * dimension
        with name_in_errors(path):
            self.descriptor = os.open(require_file(path), os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        self.mark()

    @staticmethod
    def create(path: pathlib.Path) -> None:
        """Write a file without changes."""
        with open(path, "wb") as file:
            file.write(NONE)
            sync(file)

    def mark(self) -> bytes:
        """Return the header; another one means other changes."""
        for _ in range(_TRIES):
            with name_in_errors(self.path):
                data = os.pread(self.descriptor, _HEADER.size, 0)
            if len(data) == _HEADER.size and data == _header(*_size_and_crc(data)):
                return data
            time.sleep(0.001)
        raise damaged(self.path, "its header is damaged")

    def read(self, after: bytes = NONE) -> tuple[bytes, list[Change]]:
        """Return the present mark, and the changes between an earlier one and it."""
        mark, found, at = self.mark(), list[Change](), 0
        (start, before), (end, crc) = _size_and_crc(after), _size_and_crc(mark)
        with name_in_errors(self.path):
            data = self._bytes(start, end)
        if zlib.crc32(data, before) != crc:
            raise damaged(self.path, "its changes are damaged")
        while at < len(data):
            if at + _ROW.size > len(data):
                raise damaged(self.path, "its changes have another format")
            row, size = _ROW.unpack_from(data, at)
            middle = at + _ROW.size + size
            at = middle + (self._vector if size else 0)
            if at > len(data):
                raise damaged(self.path, "its changes have another format")
            vector = np.frombuffer(data[middle:at], "<f4")
            found.append((row, data[middle - size : middle], vector))
        return mark, found

    def write(self, removed: Iterable[int], added: Iterable[Change]) -> None:
        """Write one change: rows that go, and new ones. The caller holds the folder's lock."""
        parts = [_ROW.pack(row, 0) for row in removed]
        for row, data, vector in added:
            parts += [_ROW.pack(row, len(data)), data, np.asarray(vector, "<f4").tobytes()]
        change, (size, crc) = b"".join(parts), _size_and_crc(self.mark())
        with name_in_errors(self.path), open(self.path, "r+b") as file:
            if not os.path.samestat(os.fstat(file.fileno()), os.fstat(self.descriptor)):
                raise damaged(self.path, "it was replaced while it was open")
            os.truncate(file.fileno(), _HEADER.size + size)  # of a killed writer
            try:
                file.seek(0, os.SEEK_END)
                file.write(change)
                sync(file)
            except OSError:
                with contextlib.suppress(OSError):
                    os.truncate(file.fileno(), _HEADER.size + size)
                raise
            file.seek(0)
            file.write(_header(size + len(change), zlib.crc32(change, crc)))
            sync(file)

    def _bytes(self, start: int, end: int) -> bytes:
        """Read bytes of the changes; fewer if the file is truncated."""
        end = min(end, os.fstat(self.descriptor).st_size - _HEADER.size)
        parts, at = list[bytes](), start
        while at < end and (part := os.pread(self.descriptor, end - at, _HEADER.size + at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)


def _size_and_crc(mark: bytes) -> tuple[int, int]:
    _, size, crc, _ = _HEADER.unpack(mark)
    return size, crc
