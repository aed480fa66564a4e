"""The lists of a FAISS index in its file: each is verified and read before its first use.

    vectors-BUILD.npy   int64 [L + 1, 5]: where each of L lists begins in `vectors-BUILD.faiss`, and
                        its SHA-256, as four numbers; the last row: where the lists end, and the
                        SHA-256 of what stands before and after them

The lists are nearly all of a file, and a search reads few of them, so an index is opened without.
"""

from __future__ import annotations

import hashlib
import itertools
import pathlib
import threading
import weakref

import faiss
import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, write_atomically
from qpr_jax.index.base import SUMS
from qpr_jax.index.coded_index import CodedIndex, has_vectors

_COLUMNS = 5


class StoredLists:
    """An index of FAISS whose lists are empty, and the file from which they are filled.

    Any number of threads may call `read` and search the lists that they have read. What is added
    to a list before it is read comes to stand behind what the file has of it.

    Attributes:
      index: the index.
      coded: what is filled in place of its lists, where these hold vectors as they are; else None.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Read what the lists stand in; UserError where it is damaged.

        path: of a file with `sums_path`, whose bytes are verified.
        """
        self._path, data = path, _map(path)
        self._sums = np.load(sums_path(path), allow_pickle=False)
        if self._sums.ndim != 2 or self._sums.shape[1] != _COLUMNS or not len(self._sums):
            raise ValueError(f"{sums_path(path).name} has shape {self._sums.shape}")
        self._starts = self._sums[:, 0].tolist()
        first, stop = self._starts[0], self._starts[-1]
        if not self._is_whole(-1, data[:first], data[stop:]):
            raise UserError(
                f"{path}: the bytes outside its lists differ from their SHA-256",
                remedy="restore the file, or build the index again",
            )
        mapped = _read_mapped(data)
        if len(self._starts) != mapped.nlist + 1:
            raise ValueError(f"{sums_path(path).name} is of {len(self._starts) - 1} lists")
        empty = faiss.ArrayInvertedLists(mapped.nlist, mapped.code_size)
        mapped.replace_invlists(empty, False)  # which stays Python's to free
        # A copy of its own, since the centroids would be read from the file as well.
        self.index = faiss.deserialize_index(faiss.serialize_index(mapped))
        self._lists = faiss.downcast_InvertedLists(self.index.invlists)
        sizes = np.diff(self._sums[:, 0]) // _entry_bytes(self._lists)
        self.coded = CodedIndex(self.index, sizes) if has_vectors(self.index) else None
        self._is_read = np.zeros(mapped.nlist, bool)
        self._next = 0  # all lists before this one are read
        self._lock = threading.Lock()
        # Read, not mapped, so that what is verified is what is used. Open, so that it can be read
        # when another process has replaced the index.
        self._file = open(path, "rb")  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    def read(self, lists: np.ndarray) -> bool:
        """Read these lists, int64 of any shape, -1 for none, and one more.

        So all are read after as many calls as there are lists, at the latest. Returns whether
        they are. UserError where one is damaged.
        """
        for number in np.unique(lists[~self._is_read[lists]]).tolist():
            if number >= 0:
                self._read(number)
        following = self._next
        while following < len(self._is_read) and self._is_read[following]:
            following += 1
        self._next = following
        if following < len(self._is_read):
            self._read(following)
        return following == len(self._is_read)

    def read_all(self) -> None:
        """Read all lists; as of `read`."""
        for number in range(len(self._is_read)):
            self._read(number)

    def _read(self, number: int) -> None:
        with self._lock:  # for one list at a time, so that no search waits for all of another
            if self._is_read[number]:
                return
            start, stop = self._starts[number : number + 2]
            self._file.seek(start)
            data = np.fromfile(self._file, np.uint8, stop - start)
            if not self._is_whole(number, data):
                raise UserError(
                    f"{self._path}: the bytes of list {number} differ from their SHA-256",
                    remedy="restore the file, or run `qpr compact`, which encodes the questions "
                    "again",
                )
            self._fill(number, data)
            self._is_read[number] = True

    def _fill(self, number: int, data: np.ndarray) -> None:
        """Put what the file has before what was added to a list, which no search reads yet."""
        lists = self._lists
        stop = len(data) // _entry_bytes(lists) * lists.code_size
        codes, rows = data[:stop], data[stop:].copy().view(np.int64)
        if self.coded is not None:
            vectors = codes.view(np.float32).reshape(len(rows), self.index.d)
            self.coded.lists.put_first(number, rows, vectors)
            return
        if added := lists.list_size(number):
            later = faiss.rev_swig_ptr(lists.get_codes(number), added * lists.code_size)
            codes = np.concatenate([codes, later])
            rows = np.concatenate([rows, faiss.rev_swig_ptr(lists.get_ids(number), added)])
            lists.resize(number, 0)
        if len(rows):
            lists.add_entries(number, len(rows), faiss.swig_ptr(rows), faiss.swig_ptr(codes))

    def _is_whole(self, number: int, *parts: np.ndarray) -> bool:
        return _digest(*parts) == self._sums[number, 1:].tobytes()


def sums_path(path: StrPath) -> pathlib.Path:
    """The file with the SHA-256 of each list of an index in the file `path`."""
    return pathlib.Path(path).with_suffix(SUMS)


def write_sums(path: StrPath) -> None:
    """Write `sums_path` of a file of FAISS; none where it has no lists, or of another layout."""
    data = _map(path)
    index = _read_mapped(data)
    if not isinstance(index, faiss.IndexIVF):
        return
    lists = faiss.downcast_InvertedLists(index.invlists)
    if not isinstance(lists, faiss.ArrayInvertedLists):
        return
    sizes = np.array([lists.list_size(number) for number in range(lists.nlist)])
    starts = np.append(0, np.cumsum(sizes * _entry_bytes(lists)))
    filled = np.flatnonzero(sizes).tolist()
    places = [int(lists.get_codes(number)) - data.ctypes.data for number in filled]
    starts += places[0] if filled else len(data)
    if places != starts[filled].tolist():
        return
    parts = [data[start:stop] for start, stop in itertools.pairwise(starts)]
    digests = [*map(_digest, parts), _digest(data[: starts[0]], data[starts[-1] :])]
    sums = np.frombuffer(b"".join(digests), "<i8").reshape(len(starts), -1)
    with write_atomically(sums_path(path)) as file:
        np.save(file, np.column_stack([starts, sums]), allow_pickle=False)


def _map(path: StrPath) -> np.ndarray:
    """The bytes of a file, mapped, uint8 [n]."""
    return np.memmap(path, np.uint8, "r").view(np.ndarray)


def _entry_bytes(lists: faiss.InvertedLists) -> int:
    """The bytes that a list has for each vector: its code, and its row as int64."""
    return int(lists.code_size) + 8


def _read_mapped(data: np.ndarray) -> faiss.Index:
    """The index of the bytes of a file, which it refers to instead of copying them."""
    reader = faiss.ZeroCopyIOReader(faiss.swig_ptr(data), len(data))
    return faiss.read_index(reader, faiss.IO_FLAG_MMAP_IFC)


def _digest(*parts: np.ndarray) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.data)
    return digest.digest()
