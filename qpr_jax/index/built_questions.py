"""The questions that an index was built of: written once, then mapped and never changed.

    texts-BUILD.bin         UTF-8 of all questions, one after the other
    rows-BUILD.npy          int64 [n + 1, 3]: where the text of each row begins, the id of the row
                            (-1 for a string), and a CRC of both; the last row is the end
    questions-BUILD.sqlite  the row of each id, and ids that are strings, and payloads

Texts are mapped and not in SQLite, whose look-ups would make a search of one query slower.
"""

from __future__ import annotations

import array
import contextlib
import io
import mmap
import pathlib
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

import numpy as np

from qpr_jax.files import write_atomically
from qpr_jax.ids import Id
from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.database import (
    connect,
    damaged,
    decode_text,
    encode_text,
    from_sql,
    integrity,
    sqlite_errors,
    sync_file,
    to_sql,
)

FILES = {
    "texts": "texts-{}.bin",
    "rows": "rows-{}.npy",
    "questions": "questions-{}.sqlite",
}
STRING_ID = -1
_CRC_START = 0xFFFFFFFF  # the bits of an id with which the CRC of its text begins
_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE ids (id PRIMARY KEY, row INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE extras (row INTEGER PRIMARY KEY, id, payload, crc INTEGER NOT NULL);
"""
_CHUNK = 65_536


class BuiltQuestions:
    """Questions by row, and rows by id.

    texts: bytes, or mapped. rows: int64 [n + 1, 3]. database: with the tables of a build. name: of
    the file of texts, in messages. path: of the database.
    """

    def __init__(
        self,
        texts: bytes | mmap.mmap,
        rows: np.ndarray,
        database: sqlite3.Connection,
        path: pathlib.Path,
    ) -> None:
        self._texts, self._rows, self._database, self._path = texts, rows, database, path
        self.largest_id = int(rows[:-1, 1].max(initial=-1))
        self._has_extras = bool(database.execute("SELECT 1 FROM extras LIMIT 1").fetchall())

    def __len__(self) -> int:
        return len(self._rows) - 1

    def get(self, rows: np.ndarray) -> list[StoredQuestion]:
        """The questions of rows int64 [n]; a UserError where one was damaged since it was read."""
        questions = [*map(StoredQuestion, *self.fields(rows))]
        for place, row in enumerate(rows.tolist() if self._has_extras else ()):
            for _, payload in self._extras(row):
                questions[place] = questions[place]._replace(payload=payload)
        return questions

    def fields(self, rows: np.ndarray) -> tuple[list[Id], list[str]]:
        """The ids and texts of rows; as of `get`."""
        facts = self._rows[rows]
        ids: list[Id] = facts[:, 1].tolist()
        stops, texts = self._rows[rows + 1, 0].tolist(), self._texts
        data = [texts[start:stop] for start, stop in zip(facts[:, 0].tolist(), stops, strict=True)]
        crcs = [*map(zlib.crc32, data, (facts[:, 1] & _CRC_START).tolist())]
        if crcs != facts[:, 2].tolist():
            place = next(i for i, crc in enumerate(crcs) if crc != facts[i, 2])
            raise damaged(self._path, f"the text of id {ids[place]} differs from its CRC")
        for place, row in enumerate(rows.tolist() if self._has_extras else ()):
            for value, _ in self._extras(row):
                ids[place] = value
        try:
            return ids, [*map(bytes.decode, data)]
        except UnicodeDecodeError:
            return ids, [*map(decode_text, data)]

    def _extras(self, row: int) -> list[tuple[Id, str | None]]:
        """The id and payload of a row that has more than a text and a number; else none."""
        with sqlite_errors(self._path):
            found = self._database.execute(
                "SELECT id, payload, crc FROM extras WHERE row = ?", (row,)
            ).fetchall()
        for value, payload, crc in found:
            if crc != _extra_crc(row, value, payload):
                raise damaged(self._path, f"row {row} differs from its CRC")
        return [(from_sql(value), from_sql(payload)) for value, payload, _ in found]  # type: ignore[misc]

    def rows_of(self, ids: Iterable[Id]) -> list[int]:
        """The row of each id, -1 where no row has it."""
        rows, execute = [], self._database.execute
        with sqlite_errors(self._path):
            for value in ids:
                row = None
                if isinstance(value, str) or value <= self.largest_id:
                    row = execute("SELECT row FROM ids WHERE id = ?", (to_sql(value),)).fetchone()
                rows.append(row[0] if row else -1)
        return rows

    def check_integrity(self) -> None:
        """Raise a UserError where SQLite's own check finds damage."""
        integrity(self._database, self._path)


def write_questions(
    questions: Iterable[StoredQuestion],
    folder: pathlib.Path | None,
    build: str = "",
    *,
    check: Callable[[np.ndarray], object] = len,
) -> BuiltQuestions:
    """Write questions with distinct ids to the files of a build, or to memory without a folder.

    check: called with the ids int64 [n], -1 for a string, before they are relied on.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            file: IO[bytes] = io.BytesIO()
            path = pathlib.Path(":memory:")
            database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        else:
            file = stack.enter_context(write_atomically(folder / FILES["texts"].format(build)))
            path = folder / FILES["questions"].format(build)
            database = connect(path, "mode=rwc")
            stack.callback(database.close)
        with sqlite_errors(path):
            database.executescript(_SCHEMA)
            database.execute("BEGIN")
        facts, strings = _write_texts(questions, file, database, path)
        check(facts[:-1, 1])
        with sqlite_errors(path):
            _write_ids(database, facts[:-1, 1], strings)
            database.execute("COMMIT")
        if folder is None:
            return BuiltQuestions(file.getvalue(), facts, database, path)  # type: ignore[attr-defined]
    sync_file(path)
    with write_atomically(folder / FILES["rows"].format(build)) as file:
        np.save(file, facts, allow_pickle=False)
    return read_questions(folder, build)


def read_questions(folder: pathlib.Path, build: str) -> BuiltQuestions:
    """The questions of a build, whose files are verified; ValueError where they do not fit."""
    names = {kind: folder / name.format(build) for kind, name in FILES.items()}
    texts: bytes | mmap.mmap = b""
    if names["texts"].stat().st_size:  # an empty file cannot be mapped
        with open(names["texts"], "rb") as file:
            texts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    rows = np.load(names["rows"], mmap_mode="r", allow_pickle=False).view(np.ndarray)
    if rows.ndim != 2 or rows.shape[1] != 3 or rows.dtype != np.int64:
        raise ValueError(f"{names['rows'].name} has shape {rows.shape}")
    path = names["questions"]
    with sqlite_errors(path):
        return BuiltQuestions(texts, rows, connect(path, "mode=ro&immutable=1"), path)


def _write_texts(
    questions: Iterable[StoredQuestion],
    file: IO[bytes],
    database: sqlite3.Connection,
    path: pathlib.Path,
) -> tuple[np.ndarray, list[tuple[str, int]]]:
    """Write texts, string ids and payloads; the array of rows, and the rows of string ids."""
    facts, strings, start = array.array("q"), [], 0
    for row, (value, text, payload) in enumerate(questions):
        data = encode_text(text)
        file.write(data)
        number = STRING_ID if isinstance(value, str) else value
        facts.extend((start, number, zlib.crc32(data, number & _CRC_START)))
        start += len(data)
        if isinstance(value, str):
            strings.append((value, row))
        if isinstance(value, str) or payload is not None:
            extra = (to_sql(value), to_sql(payload))
            with sqlite_errors(path):
                database.execute(
                    "INSERT INTO extras VALUES (?, ?, ?, ?)", (row, *extra, _extra_crc(row, *extra))
                )
    facts.extend((start, STRING_ID, 0))
    return np.array(facts, np.int64).reshape(-1, 3), strings


def _write_ids(
    database: sqlite3.Connection, ids: np.ndarray, strings: Sequence[tuple[str, int]]
) -> None:
    """Fill the table of ids in their order, in which SQLite only appends."""

    def numbers() -> Iterator[tuple[int, int]]:
        order = np.argsort(ids, kind="stable")
        order = order[np.searchsorted(ids[order], STRING_ID, side="right") :]
        for start in range(0, len(order), _CHUNK):
            rows = order[start : start + _CHUNK]
            yield from zip(ids[rows].tolist(), rows.tolist(), strict=True)

    database.executemany("INSERT INTO ids VALUES (?, ?)", numbers())
    database.executemany(
        "INSERT INTO ids VALUES (?, ?)", ((to_sql(value), row) for value, row in strings)
    )


def _extra_crc(row: int, value: object, payload: object) -> int:
    return zlib.crc32(ascii((row, value, payload)).encode())
