"""Pairs in the files of a folder: written in parts, kept by a run that was killed."""

from __future__ import annotations

import hashlib
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, read_object, write_atomically, write_json

FORMAT = "qpr_jax pairs 1"
PART = 1 << 20  # the most pairs of a part
_STATE, _FOUND = "state.json", "found.json"
_PAIR = np.dtype([("first", "<i8"), ("second", "<i8"), ("distance", "<f4")])  # 20 bytes
_SUFFIXES = (".npy", ".bin", ".json", ".part")  # of the files of a search
_INTERVAL = 10.0  # seconds after which the next pairs are written, however few


class Pairs(NamedTuple):
    """Pairs of rows, nearest first: `first` < `second` int64 [P], squared distances float32 [P]."""

    first: np.ndarray
    second: np.ndarray
    distances: np.ndarray

    def where(self, chosen: np.ndarray | slice) -> Pairs:
        """The pairs that a mask bool [P], an order int64 or a slice chooses."""
        return Pairs(self.first[chosen], self.second[chosen], self.distances[chosen])


def no_pairs() -> Pairs:
    """A list of none."""
    return Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))


def join_pairs(parts: list[Pairs]) -> Pairs:
    """The pairs of all parts, one after the other."""
    first, second, distances = map(np.concatenate, zip(*parts, no_pairs(), strict=True))
    return Pairs(first, second, distances)


def sort_pairs(pairs: Pairs) -> Pairs:
    """The pairs, nearest first; of equal distances, those of the first rows first."""
    return pairs.where(np.lexsort((pairs.second, pairs.first, pairs.distances)))


class PairFolder:
    """A folder with the pairs of numbered tasks, in the order of the tasks.

    `state.json` has the digest of what is searched; another one empties the folder. Files of pairs
    are named by the first task of theirs and the one after their last, and written atomically, so
    their names say where to go on. `found.json` comes last.
    """

    def __init__(self, path: StrPath, digest: str) -> None:
        self.path = pathlib.Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        state = {"format": FORMAT, "digest": digest}
        if read_object(self.path / _STATE) != state:
            # A kill after them leaves files that belong to no search.
            for name in (_FOUND, _STATE):
                (self.path / name).unlink(missing_ok=True)
            for file in self.path.iterdir():
                if file.is_file() and file.suffix in _SUFFIXES:
                    file.unlink()
            write_json(self.path / _STATE, state)
        self._waiting: list[Pairs] = []
        self._written = time.monotonic()
        self._begun, self.next_task = 0, 0  # of the pairs that wait, and of all
        if self.found():
            return
        for file in self._files():
            begin, end = _tasks(file)
            if begin != self.next_task:  # of a run that had other tasks
                file.unlink()
            else:
                self.next_task = self._begun = end

    def found(self) -> dict[str, Any] | None:
        """What `finish` was given, if all tasks are done."""
        return read_object(self.path / _FOUND) or None

    def restart(self) -> None:
        """Remove all pairs."""
        for file in self._files():
            file.unlink()
        self._waiting, self._begun, self.next_task = [], 0, 0

    def add(self, pairs: Pairs) -> None:
        """Keep the pairs of the next task."""
        self.next_task += 1
        if len(pairs.first):
            self._waiting.append(pairs)
        many = sum(len(part.first) for part in self._waiting) >= PART // 2
        if many or time.monotonic() - self._written > _INTERVAL:
            self.write()

    def write(self) -> None:
        """Write the pairs that wait."""
        if self.next_task > self._begun:
            pairs = join_pairs(self._waiting)
            rows = np.empty(len(pairs.first), _PAIR)
            rows["first"], rows["second"], rows["distance"] = pairs
            name = f"pairs-{self._begun:012d}-{self.next_task:012d}.npy"
            with write_atomically(self.path / name) as file:
                np.save(file, rows)
        self._waiting, self._begun, self._written = [], self.next_task, time.monotonic()

    def finish(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Write the last pairs and the facts, with the number of all pairs as `count`.

        All that only a run which goes on would read is removed.
        """
        self.write()
        files = self._files()
        facts = {"count": sum(len(_rows(file)) for file in files), **facts}
        write_json(self.path / _FOUND, facts)
        kept = {self.path / _FOUND, self.path / _STATE, *files}
        for file in self.path.iterdir():
            if file.is_file() and file not in kept and file.suffix in _SUFFIXES:
                file.unlink()
        return facts

    def parts(self) -> Iterator[Pairs]:
        """The pairs of all tasks, at most PART at a time."""
        for file in self._files():
            rows = _rows(file)
            for start in range(0, len(rows), PART):
                part = rows[start : start + PART]
                yield Pairs(*(np.ascontiguousarray(part[name]) for name in _PAIR.names or ()))

    def _files(self) -> list[pathlib.Path]:
        return sorted(self.path.glob("pairs-*.npy"))


def digest_of(arrays: list[np.ndarray | None], settings: dict[str, Any]) -> str:
    """A digest of arrays, which may be files that do not fit in memory, and of JSON settings."""
    made = hashlib.sha256(json.dumps([FORMAT, settings], sort_keys=True).encode())
    for array in arrays:
        made.update(b"none" if array is None else f"{array.dtype.str} {array.shape}".encode())
        for start in range(0, 0 if array is None else len(array), 1 << 14):
            made.update(np.ascontiguousarray(array[start : start + (1 << 14)]).data)  # type: ignore[index]
    return made.hexdigest()


def _tasks(file: pathlib.Path) -> tuple[int, int]:
    _, begin, end = file.stem.split("-")
    return int(begin), int(end)


def _rows(file: pathlib.Path) -> np.ndarray:
    try:
        return np.load(file, mmap_mode="r")
    except (ValueError, EOFError) as error:
        what = f"{file}: expected pairs, got {error}"
        raise UserError(what, remedy="remove the folder") from error
