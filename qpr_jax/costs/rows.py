"""How many rows a file has, without reading all of it where it is large."""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from qpr_jax.data.questions import Entry
from qpr_jax.data.tables import compression, format_of
from qpr_jax.index.question_store import QuestionStore

_ARROW_STREAM = b"\xff\xff\xff\xff"
SAMPLE = 16_384  # rows that are read before the work
_COUNTED = 1 << 29  # bytes whose lines are counted; of a larger file, blocks of it are
_BLOCK, _BLOCKS = 1 << 22, 64
_COMPRESSED, _READ = 1 << 22, 1 << 18  # bytes that are decompressed, and at once


@dataclass(frozen=True)
class Sample:
    """The first questions of an input, and how many there are.

    Attributes:
      entries: the first questions, at most SAMPLE, with their ids and payload.
      count: of all.
      exact: whether `count` is known.
      read_seconds: to read one.
      text_bytes: UTF-8 of one, on average.
      whole: whether `entries` are all.
    """

    entries: Sequence[Entry]
    count: int
    exact: bool
    read_seconds: float
    text_bytes: float
    whole: bool = False

    @property
    def questions(self) -> list[str]:
        """The texts of the entries."""
        return [entry.question for entry in self.entries]


def sample_file(path: str, rows: Iterator[Entry]) -> Sample:
    """Read the first rows of a file, and estimate how many `rows` would yield."""
    start = time.perf_counter()
    first = [*itertools.islice(rows, SAMPLE)]
    seconds = (time.perf_counter() - start) / max(1, len(first))
    count, exact = len(first), True
    if len(first) == SAMPLE and not _has_lines(path):
        count += sum(1 for _ in rows)
    elif len(first) == SAMPLE:
        lines, exact = count_lines(path)
        # Blank lines, bad rows and cells of several lines come as often further on.
        spanned = first[-1].line - first[0].line + 1
        left = max(0.0, lines - first[-1].line) * len(first) / spanned
        count, exact = len(first) + round(left), exact and spanned == len(first)
    return _sample(first, count, exact, seconds)


def watch(rows: Iterable[Entry], done: Callable[[Sample], object]) -> Iterator[Entry]:
    """Yield rows, and call `done` with their sample: first if they are few, else at the end."""
    stream, start = iter(rows), time.perf_counter()
    first = [*itertools.islice(stream, SAMPLE)]
    if few := len(first) < SAMPLE:
        done(_sample(first, len(first), True, (time.perf_counter() - start) / max(1, len(first))))
    yield from first
    count = len(first)
    for row in stream:
        count += 1
        yield row
    if not few:
        done(_sample(first, count, True, (time.perf_counter() - start) / count))


def sample_list(questions: Sequence[str]) -> Sample:
    """Some of the questions that are in memory, from all over the list."""
    entries = [Entry(0, None, questions[row]) for row in _spread(len(questions)).tolist()]
    return _sample(entries, len(questions), True, 0.0)


def sample_store(store: QuestionStore) -> Sample:
    """Some of the questions of an index, from all over it."""
    live = store.live_rows()
    entries = [Entry(0, *question) for question in store.get(live[_spread(len(live))])]
    return _sample(entries, len(live), True, 0.0)


def _spread(count: int) -> np.ndarray:
    """Up to SAMPLE distinct numbers below `count`, int64 [n], sorted, at random."""
    return np.sort(np.random.default_rng(0).permutation(count)[:SAMPLE])


def _sample(first: Sequence[Entry], count: int, exact: bool, seconds: float) -> Sample:
    size = _mean_bytes([entry.question for entry in first])
    return Sample(first, count, exact, seconds, size, whole=len(first) < SAMPLE)


def _mean_bytes(questions: Sequence[str]) -> float:
    return sum(len(text.encode("utf-8", "replace")) for text in questions) / max(1, len(questions))


def _has_lines(path: str) -> bool:
    """Whether rows can be counted by lines or by the metadata, which JSON arrays do not allow."""
    with open(path, "rb") as file:
        start = file.read(4)
    return format_of(path) != "json" and start[:1] != b"[" and start != _ARROW_STREAM


def count_lines(path: str) -> tuple[float, bool]:
    """How many lines a file has, of Parquet and Arrow rows; and whether the number is exact."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        start = file.read(6)
        file.seek(0)
        if start[:4] == b"PAR1" or start == b"ARROW1":
            return _arrow_rows(path, start), True
        if kind := compression(start):
            return _compressed_lines((_gunzip if kind == "gzip" else _unzstd)(file), size)
        if size <= _COUNTED:
            blocks = iter(lambda: file.read(_BLOCK), b"")
            return sum(map(_newlines, blocks)) + _unended(file, size), True
        found = 0
        for number in range(_BLOCKS):
            file.seek(number * (size - _BLOCK) // (_BLOCKS - 1))
            found += _newlines(file.read(_BLOCK))
        return found * size / (_BLOCKS * _BLOCK), False


def _newlines(block: bytes) -> int:
    return block.count(b"\n")


def _unended(file: BinaryIO, size: int) -> int:
    """1 where the last line of a file has no end."""
    if not size:
        return 0
    file.seek(-1, os.SEEK_END)
    return int(file.read(1) != b"\n")


def _arrow_rows(path: str, start: bytes) -> int:
    import pyarrow.ipc
    import pyarrow.parquet

    if start[:4] == b"PAR1":
        return int(pyarrow.parquet.ParquetFile(path).metadata.num_rows)
    with pyarrow.memory_map(path) as file:
        table: Any = pyarrow.ipc.open_file(file)
        return sum(table.get_batch(i).num_rows for i in range(table.num_record_batches))


def _compressed_lines(parts: Iterator[tuple[bytes, int]], size: int) -> tuple[float, bool]:
    """Lines of a file of `size` bytes, whose (text, bytes read so far) are given."""
    found = read = 0
    end = b"\n"
    for text, read in parts:
        found += _newlines(text)
        end = text[-1:] or end
        if read >= _COMPRESSED:
            break
    if read >= size:
        return found + (end != b"\n"), True
    return found * size / max(1, read), False


def _gunzip(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    reader, read = zlib.decompressobj(31), 0
    while data := file.read(_READ):
        read += len(data)
        text = b""
        while data:  # a file may be of several members, one after the other
            text += reader.decompress(data)
            data = reader.unused_data
            if data:
                reader = zlib.decompressobj(31)
        yield text, read


def _unzstd(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    import pyarrow

    with pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd") as stream:
        while text := stream.read(1 << 20):
            yield text, file.tell()
