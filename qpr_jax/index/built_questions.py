"""The questions that an index was built of: written once, then mapped and never changed.

    texts-BUILD.bin   the records of all questions, one after the other (see `records`)
    rows-BUILD.npy    int64 [n + 1, 3]: where the record of each row begins; the number of its id,
                      or a hash below 0 of an id that spells none; and a CRC of the record, with,
                      from bit 32 on, the kinds of what is in it. The last row: the end of the
                      records, the greatest number (-1 where there is none), all kinds that occur
    order-BUILD.npy   unsigned [n]: the rows by these numbers; [0] where they are in order as stored

A row is found by its id by bisection, so nothing is read when an index is opened. The order of a
build is checked as it is written. The two arrays are verified by SHA-256 when they are opened, the
records by their CRC whenever one is read.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import pathlib
import zlib
from collections.abc import Iterable, Sequence
from typing import IO

import numpy as np

from qpr_jax.data.questions import Payload
from qpr_jax.files import write_atomically
from qpr_jax.ids import Id
from qpr_jax.index import records
from qpr_jax.index.base import Check, StoredQuestion
from qpr_jax.index.database import damaged, decode_text
from qpr_jax.index.payloads import parse_payload

FILES = {"texts": "texts-{}.bin", "rows": "rows-{}.npy", "order": "order-{}.npy"}

_CHUNK = 65_536


class BuiltQuestions:
    """Questions by row, and rows by id.

    texts: bytes, or mapped. rows: int64 [n + 1, 3]. order: unsigned [n] or [0]. path: of the file
    of texts, in messages.
    """

    def __init__(
        self, texts: bytes | mmap.mmap, rows: np.ndarray, order: np.ndarray, path: pathlib.Path
    ) -> None:
        self._texts, self._rows, self._order, self._path = texts, rows, order, path
        self.largest_id = int(rows[-1, 1])
        self.record_bytes = int(rows[-1, 0])
        self._kinds = int(rows[-1, 2]) >> records.SHIFT
        self._plain = not self._kinds and self.largest_id <= records.CRC

    def __len__(self) -> int:
        return len(self._rows) - 1

    @property
    def has_string_ids(self) -> bool:
        """Whether an id is a string."""
        return bool(self._kinds & (records.ID_BYTES | records.NUMERAL))

    def columns(self, rows: np.ndarray) -> tuple[list[Id], list[str], list[Payload | None]]:
        """The ids, texts and payloads of rows int64 [n]; a UserError where one was damaged."""
        read = self._read(rows)
        return *_fields(*read), _payloads(*read)

    def fields(self, rows: np.ndarray) -> tuple[list[Id], list[str]]:
        """The ids and texts of rows; as of `columns`."""
        return _fields(*self._read(rows))

    def payloads(self, rows: np.ndarray) -> list[Payload | None]:
        """The payloads of rows; as of `columns`."""
        has_payload = self._kinds & records.PAYLOAD
        return _payloads(*self._read(rows)) if has_payload else [None] * len(rows)

    def _read(self, rows: np.ndarray) -> tuple[list[int], list[int], list[bytes]]:
        """The numbers, kinds and records of rows, checked; no kinds where all are 0."""
        facts = self._rows[rows]
        first, numbers, checks = facts.T.tolist()
        texts, last = self._texts, self._rows[rows + 1, 0].tolist()
        data = [texts[start:stop] for start, stop in zip(first, last, strict=True)]
        starts, kinds = numbers, []
        if not self._plain:  # else the numbers are what `crc_start` returns
            starts = records.crc_start(facts[:, 1], facts[:, 2]).tolist()
        if self._kinds:
            checks = (facts[:, 2] & records.CRC).tolist()
            kinds = (facts[:, 2] >> records.SHIFT).tolist()
        crcs = [*map(zlib.crc32, data, starts)]
        if crcs != checks:
            wrong = next(i for i, crc in enumerate(crcs) if crc != checks[i])
            raise damaged(self._path, f"the record of row {rows[wrong]} differs from its CRC")
        return numbers, kinds, data

    def rows_of(self, ids: Sequence[Id]) -> np.ndarray:
        """The row of each id, int64 [n], -1 where no row has it; the first where several have."""
        numbers = np.fromiter(map(records.number_of, ids), np.int64, len(ids))
        found = np.full(len(ids), -1, np.int64)
        strings = bool(self._kinds & records.ID_BYTES)
        asked = np.flatnonzero((numbers <= self.largest_id) & (strings | (numbers >= 0)))
        if not len(asked) or not len(self):
            return found
        places = self._places(numbers[asked])
        rows = self._row_at(np.minimum(places, len(self) - 1))
        same = self._rows[rows, 1] == numbers[asked]
        asked, places, rows = asked[same], places[same], rows[same]
        found[asked] = rows
        hashed = np.flatnonzero(numbers[asked] < 0).tolist()
        for i, value in zip(hashed, self.fields(rows[hashed])[0], strict=True):
            if value != ids[asked[i]]:
                found[asked[i]] = self._row_of_string(ids[asked[i]], rows[i], places[i])
        return found

    def _places(self, numbers: np.ndarray) -> np.ndarray:
        """The first place in the order whose number is not less, int64 [n]; by bisection."""
        low = np.zeros(len(numbers), np.int64)
        high = np.full(len(numbers), len(self))
        while (low < high).any():
            middle = (low + high) // 2
            open_ = low < high
            less = self._rows[self._row_at(np.minimum(middle, len(self) - 1)), 1] < numbers
            low = np.where(open_ & less, middle + 1, low)
            high = np.where(open_ & ~less, middle, high)
        return low

    def _row_at(self, places: np.ndarray) -> np.ndarray:
        """The rows at places of the order, int64 [n]."""
        return self._order[places].astype(np.int64) if len(self._order) else places

    def _row_of_string(self, value: Id, other: int, place: int) -> int:
        """The row of a string whose hash is that of the row `other`, too, which is at `place`."""
        number = self._rows[other, 1]
        for later in range(place + 1, len(self)):
            row = self._row_at(np.array([later]))
            if self._rows[row[0], 1] != number:
                break
            if self.fields(row)[0] == [value]:
                return int(row[0])
        return -1

    def first_repeated(self) -> tuple[int, Id] | None:
        """The first row, with its id, whose id an earlier row has; None where all ids differ."""
        if not len(self._order):  # each is greater than the one before
            return None
        numbers = self._rows[self._row_at(np.arange(len(self))), 1]
        same = np.flatnonzero(numbers[1:] == numbers[:-1]) + 1
        for row in np.sort(self._row_at(same)):
            ids, _ = self.fields(np.array([row]))
            if self.rows_of(ids)[0] != row:
                return int(row), ids[0]
        return None

    def check_integrity(self) -> None:
        """Raise a UserError where a record or the order is damaged."""
        last = np.iinfo(np.int64).min
        for start in range(0, len(self), _CHUNK):
            places = np.arange(start, min(start + _CHUNK, len(self)))
            self._read(places)
            numbers = np.append(last, self._rows[self._row_at(places), 1])
            if (numbers[1:] < numbers[:-1]).any():  # a difference might overflow
                raise damaged(self._path, "rows are out of the order of their ids")
            last = numbers[-1]


def _fields(numbers: list[int], kinds: list[int], data: list[bytes]) -> tuple[list[Id], list[str]]:
    """The ids and texts of records; arguments as of `BuiltQuestions._read`."""
    ids: list[Id] = [*numbers]
    if kinds:
        parts = [*map(records.split, data, numbers, kinds)]
        ids, data = [value for value, _ in parts], [text for _, text in parts]
    try:
        return ids, [*map(bytes.decode, data)]
    except UnicodeDecodeError:
        return ids, [*map(decode_text, data)]


def _payloads(numbers: list[int], kinds: list[int], data: list[bytes]) -> list[Payload | None]:
    if not kinds:
        return [None] * len(numbers)
    return [parse_payload(text) for text in map(records.payload, data, kinds)]


def accept(count: int, repeated: tuple[int, Id] | None) -> None:
    """The `Check` of questions whose ids were checked before."""


def write_questions(
    questions: Iterable[StoredQuestion],
    folder: pathlib.Path | None,
    build: str = "",
    *,
    check: Check = accept,
) -> BuiltQuestions:
    """Write questions to the files of a build, or to memory without a folder.

    check: raises an error where an id stands twice, before the questions are relied on.
    """
    with contextlib.ExitStack() as stack:
        path = pathlib.Path(":memory:")
        file: IO[bytes] = io.BytesIO()
        if folder is not None:
            path = folder / FILES["texts"].format(build)
            file = stack.enter_context(write_atomically(path))
        facts = records.write(questions, file)
        file.flush()
        order = _order(facts[:-1, 1])
        texts = file.getvalue() if isinstance(file, io.BytesIO) else _map(pathlib.Path(file.name))
        built = BuiltQuestions(texts, facts, order, path)
        check(len(built), built.first_repeated())
        if folder is None:
            return built
    for kind, values in (("rows", facts), ("order", order)):
        with write_atomically(folder / FILES[kind].format(build)) as file:
            np.save(file, values, allow_pickle=False)
    return read_questions(folder, build)


def read_questions(folder: pathlib.Path, build: str) -> BuiltQuestions:
    """The questions of a build, whose files are verified; ValueError where they do not fit."""
    names = {kind: folder / name.format(build) for kind, name in FILES.items()}
    rows, order = (
        np.load(names[kind], mmap_mode="r", allow_pickle=False).view(np.ndarray)
        for kind in ("rows", "order")
    )
    if rows.ndim != 2 or rows.shape[1] != 3 or rows.dtype != np.int64 or not len(rows):
        raise ValueError(f"{names['rows'].name} has shape {rows.shape}")
    if order.dtype.kind != "u" or order.shape not in ((0,), (len(rows) - 1,)):
        raise ValueError(f"{names['order'].name} has shape {order.shape}")
    return BuiltQuestions(_map(names["texts"]), rows, order, names["texts"])


def _map(path: pathlib.Path) -> bytes | mmap.mmap:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return b""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _order(numbers: np.ndarray) -> np.ndarray:
    """The order of numbers int64 [n], rows with equal ones as they are stored; see FILES."""
    kind = np.min_scalar_type(len(numbers))
    if (numbers[1:] > numbers[:-1]).all():
        return np.zeros(0, kind)
    return np.argsort(numbers, kind="stable").astype(kind)
