"""The rows whose duplicates are searched, on disk, and the distinct texts among them, the entries.

    new/, old/    the questions of a table, and of what it is compared with, as of `built_questions`
    rows.npz      what is made of them; see `Rows`
    source.json   SHA-256 of the files, by which a later run knows the same input again, and the
                  state of the index that it was read with

Entries are in the order of a hash of block and text, so that nothing depends on the order of rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from qpr_jax.data.questions import Payload
from qpr_jax.duplicates.hashed_questions import HashedQuestions
from qpr_jax.files import read_object, sha256_of, write_atomically, write_json
from qpr_jax.ids import Id, id_key
from qpr_jax.index.base import Check, StoredQuestion
from qpr_jax.index.built_questions import (
    FILES,
    BuiltQuestions,
    accept,
    read_questions,
    write_questions,
)

log = logging.getLogger("qpr_jax")

_FILE, _SOURCE = "rows.npz", "source.json"
ADDING = "adding.json"  # which rows of an index are those of the table
_BUILD = "rows"
_CHUNK = 65_536  # rows whose texts are in memory at once
OLD, NEW = 0, 1
_Columns = tuple[list[Id], list[str], list[Any]]  # ids, texts and payloads


@dataclass(frozen=True)
class Rows:
    """R rows, first those of the table, then those that it is compared with; and their E entries.

    Attributes:
      parts: the questions of both, the second with no rows where there are none.
      entries: int64 [R], the entry of each row; -1 for a row that is left out.
      first: int64 [E], the row of an entry with the smallest id, which stands for it.
      copies: int64 [E], how many rows an entry has.
      spellings: int64 [E], the same number for entries that differ in case, blanks and final mark
        only.
      blocks: int64 [E], only entries of one block are compared; None: all.
      is_new: bool [E], whether a row of the table is in it; None where all are.
      keys: uint64 [E, 2], hashes of block and text.
      kinds: the types of the values of each field of the payloads, by its name; see `kind_of`.
    """

    parts: tuple[BuiltQuestions, BuiltQuestions]
    entries: np.ndarray
    first: np.ndarray
    copies: np.ndarray
    spellings: np.ndarray
    blocks: np.ndarray | None
    is_new: np.ndarray | None
    keys: np.ndarray
    kinds: dict[str, list[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def searched(self) -> np.ndarray:
        """The rows of the table that are searched, int64 [n]: all, or what an index lacks."""
        return np.flatnonzero(self.entries[: self.table_rows] >= 0)

    @property
    def identity(self) -> str:
        """Of the texts of all entries, whatever the order of the rows."""
        return hashlib.sha256(np.ascontiguousarray(self.keys).tobytes()).hexdigest()

    @property
    def table_rows(self) -> int:
        """How many rows the table has; the others are those that it is compared with."""
        return len(self.parts[0])

    @property
    def has_others(self) -> bool:
        """Whether there are rows that the table is compared with."""
        return len(self) > self.table_rows

    def fields(self, rows: np.ndarray) -> tuple[list[Id], list[str]]:
        """The ids and texts of rows int64 [n]."""
        ids, texts, _ = self._of(rows, lambda part, own: (*part.fields(own), [None] * len(own)))
        return ids, texts

    def columns(self, rows: np.ndarray) -> tuple[list[Id], list[str], list[Payload | None]]:
        """The ids, texts and payloads of rows int64 [n]."""
        return self._of(rows, lambda part, own: part.columns(own))

    def _of(
        self, rows: np.ndarray, read: Callable[[BuiltQuestions, np.ndarray], _Columns]
    ) -> _Columns:
        size = self.table_rows
        of_table = rows < size
        if of_table.all():
            return read(self.parts[0], rows)
        found = read(self.parts[0], rows[of_table]), read(self.parts[1], rows[~of_table] - size)
        own, other = (zip(*columns, strict=True) for columns in found)
        joined = [next(own if is_own else other) for is_own in of_table.tolist()]
        ids, texts, payloads = zip(*joined, strict=True)
        return [*ids], [*texts], [*payloads]

    def texts_of(self, entries: np.ndarray) -> list[str]:
        """The texts of entries int64 [n]."""
        return self.fields(self.first[entries])[1]

    def by_id(self, rows: np.ndarray) -> np.ndarray:
        """Rows int64 [n] in the order of their ids: numbers, then strings."""
        keys = [*map(order_key, self.fields(rows)[0])]
        return rows[sorted(range(len(rows)), key=keys.__getitem__)]


def order_key(value: Id) -> tuple[bool, Id]:
    """By what ids are ordered: numbers before strings; ids that print alike are one."""
    key = id_key(value)
    return isinstance(key, str), key


_ARRAYS = [field.name for field in dataclasses.fields(Rows)[1:-1]]


def read_rows(
    folder: pathlib.Path,
    questions: Iterable[StoredQuestion],
    others: Iterable[StoredQuestion] = (),
    *,
    check: Check = accept,
    check_others: Check = accept,
    within: str | None = None,
    apart: bool = False,
    known_by: Literal["id", "text"] | None = None,
    states: Sequence[str] = ("",),
) -> Rows:
    """Write rows to a folder, and find the distinct texts among them.

    Args:
      folder: where the same questions were written before, what was made of them is used.
      questions: of the table.
      others: with which they are compared.
      check, check_others: as of `write_questions`.
      within: the name in the payload whose values are the blocks; see `block_of`. A row without a
        value is compared with nothing, but for copies of its text where `known_by` is "text".
      apart: whether a text of both is two entries, one of each.
      known_by: of `others` of an index, by what it knows a row of the table: those rows are left
        out. The folder keeps what the index had when it was first read.
      states: of the index, the present one, then others of which the folder may have rows.
    """
    settings = json.dumps([within, apart, known_by])
    before = read_object(folder / _SOURCE)
    alone = {"id": "", "text": None, None: "new"}[known_by]
    new = HashedQuestions(questions, within, alone)
    _write(folder / "new.part", new, check)
    # Numbers that an index gives are others when it has grown.
    files = ("texts",) if known_by == "text" else ("texts", "rows")
    found: dict[str, Any] = {"settings": settings, "new": _digest(folder / "new.part", files)}
    is_same = all(before.get(name) == value for name, value in found.items())
    is_same &= before.get("state") in states
    found["state"] = states[0]
    if known_by and is_same:
        shutil.rmtree(folder / "new.part")
        return _read(folder)
    old = HashedQuestions(others, within, "old" if alone else alone)
    _write(folder / "old.part", old, check_others)
    found["old"] = _digest(folder / "old.part", ("texts", "rows"))
    if is_same and before.get("old") == found["old"]:
        shutil.rmtree(folder / "new.part")
        shutil.rmtree(folder / "old.part")
        return _read(folder)
    forget_rows(folder)
    for name in ("new", "old"):
        shutil.rmtree(folder / name, ignore_errors=True)
        os.replace(folder / f"{name}.part", folder / name)
    parts = _parts(folder)
    if within and apart and len(parts[1]) and new.values.isdisjoint(old.values):
        log.warning("no value of `%s` is in both tables: nothing is compared", within)
    rows = _distinct(parts, new, old, within is not None, apart=apart)
    if known_by:
        rows = _leave_out_known(rows, known_by)
    found["kinds"] = _join_kinds(new.kinds, old.kinds)
    with write_atomically(folder / _FILE) as file:
        arrays = {name: getattr(rows, name) for name in _ARRAYS}
        np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    write_json(folder / _SOURCE, found)
    return dataclasses.replace(rows, kinds=found["kinds"])


def _join_kinds(new: dict[str, set[str]], old: dict[str, set[str]]) -> dict[str, list[str]]:
    none: set[str] = set()
    return {name: sorted(new.get(name, none) | old.get(name, none)) for name in {**new, **old}}


def forget_rows(folder: pathlib.Path) -> None:
    """Let no later run use the rows of a folder."""
    for name in (ADDING, _SOURCE):
        (folder / name).unlink(missing_ok=True)


def kept_rows(folder: pathlib.Path) -> Rows | None:
    """The rows of a folder; None where it has none."""
    return _read(folder) if (folder / _SOURCE).exists() else None


def _write(folder: pathlib.Path, source: HashedQuestions, check: Check) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_questions(source, folder, _BUILD, check=check)


def _digest(folder: pathlib.Path, files: Sequence[str]) -> list[str]:
    return [sha256_of(folder / FILES[name].format(_BUILD)) for name in files]


def _parts(folder: pathlib.Path) -> tuple[BuiltQuestions, BuiltQuestions]:
    return read_questions(folder / "new", _BUILD), read_questions(folder / "old", _BUILD)


def _read(folder: pathlib.Path) -> Rows:
    kinds = read_object(folder / _SOURCE)["kinds"]
    with np.load(folder / _FILE, allow_pickle=False) as arrays:
        return Rows(_parts(folder), **{name: arrays.get(name) for name in _ARRAYS}, kinds=kinds)


def _distinct(
    parts: tuple[BuiltQuestions, BuiltQuestions],
    new: HashedQuestions,
    old: HashedQuestions,
    has_blocks: bool,
    *,
    apart: bool,
) -> Rows:
    """The entries of rows, in the order of their hashes; of one text the old before the new."""
    hashes = np.concatenate([new.hashes(), old.hashes()])
    side = np.repeat([NEW, OLD], [len(parts[0]), len(parts[1])])
    keys = [hashes[:, 1], hashes[:, 0]]
    order = np.lexsort([side, *keys] if apart else keys)
    starts = np.append(True, (hashes[order][1:] != hashes[order][:-1]).any(axis=1))[: len(order)]
    if apart:
        starts = starts | np.append(True, side[order][1:] != side[order][:-1])[: len(order)]
    entries = np.empty(len(order), np.int64)
    entries[order] = np.cumsum(starts) - 1
    first = order[starts]
    count = len(first)
    blocks = None
    if has_blocks:
        blocks = np.concatenate([new.blocks(), old.blocks()])[first]
        blocks = np.unique(blocks, return_inverse=True)[1].reshape(-1)
    is_new = None
    if len(parts[1]):
        is_new = np.zeros(count, bool)
        is_new[entries[: len(parts[0])]] = True
    copies = np.bincount(entries, minlength=count)
    spellings = np.concatenate([new.spellings(), old.spellings()])[first]
    rows = Rows(parts, entries, first, copies, spellings, blocks, is_new, hashes[first])
    return _with_smallest_ids(rows)


def _with_smallest_ids(rows: Rows) -> Rows:
    """The rows with, for each entry of several, that of the smallest id first."""
    several = np.flatnonzero((rows.entries >= 0) & (rows.copies > 1)[rows.entries])
    if not len(several):
        return rows
    several = rows.by_id(several)
    entries, first = rows.entries[several], rows.first.copy()
    found, at = np.unique(entries, return_index=True)
    first[found] = several[at]
    return dataclasses.replace(rows, first=first)


def _leave_out_known(rows: Rows, known_by: str) -> Rows:
    """Leave out the rows of a table that an index has, and those of the index that they replace.

    A row is known if the index has its text; with ids, under its id. A row whose id the index has
    with another text replaces that.
    """
    size, entries = rows.table_rows, rows.entries.copy()
    if known_by == "text":
        has_old = np.zeros(len(rows.first), bool)
        has_old[entries[size:]] = True
        entries[:size][has_old[entries[:size]]] = -1
        return _without_rows(rows, entries)
    for start in range(0, size if len(rows.parts[1]) else 0, _CHUNK):
        own = np.arange(start, min(start + _CHUNK, size))
        there = rows.parts[1].rows_of(rows.parts[0].fields(own)[0])
        own, there = own[there >= 0], there[there >= 0] + size
        same = rows.entries[own] == rows.entries[there]
        entries[own[same]] = -1
        entries[there[~same]] = -1
    return _without_rows(rows, entries)


def _without_rows(rows: Rows, entries: np.ndarray) -> Rows:
    """The rows with those left out whose `entries` int64 [R] is -1, and no entry without rows."""
    kept = entries >= 0
    copies = np.bincount(entries[kept], minlength=len(rows.first))
    there = copies > 0
    number = np.cumsum(there) - 1
    entries = np.where(kept, number[entries], -1)
    first = np.empty(int(there.sum()), np.int64)
    alive = np.flatnonzero(kept)
    first[entries[alive][::-1]] = alive[::-1]
    is_new = np.zeros(len(first), bool)
    is_new[entries[: rows.table_rows][kept[: rows.table_rows]]] = True
    some = rows.blocks[there] if rows.blocks is not None else None
    kept_facts = (copies[there], rows.spellings[there], some, is_new, rows.keys[there])
    left = Rows(rows.parts, entries, first, *kept_facts)
    return _with_smallest_ids(left)
