"""The record of a question in a build: its text, and what few indexes have besides.

    id        UTF-8 of an id that is a string, unless it spells a number
    text      UTF-8 of the question
    payload   JSON in UTF-8, and then its size, 4 bytes, little-endian

Bits next to the CRC, the kinds, say which of these a record has. They are 0 for a number and a
text: such a record is the text alone.
"""

from __future__ import annotations

import array
import hashlib
import zlib
from collections.abc import Iterable
from typing import IO

import numpy as np

from qpr_jax.ids import Id, id_key
from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.database import decode_text, encode_text
from qpr_jax.index.payloads import payload_json

ID_BYTES = 0x7FF  # the size of the id, which is 1,024 at most; 0: the id is a number, or spells one
NUMERAL = 1 << 11  # the id is a string that spells a number
PAYLOAD = 1 << 12
SHIFT, CRC = 32, 0xFFFFFFFF  # where the kinds begin, and the bits before
_SIZE = 4  # bytes of the size of a payload


def number_of(value: Id) -> int:
    """The number by which an id is found; below 0 for a string that spells none, as a hash."""
    key = id_key(value)
    if not isinstance(key, str):
        return key
    digest = hashlib.blake2b(encode_text(key), digest_size=8).digest()
    return -1 - (int.from_bytes(digest, "little") >> 1)


def crc_start(numbers: np.ndarray, checks: np.ndarray) -> np.ndarray:
    """With what the CRC of records begins, int64 [n], by columns 1 and 2 of their rows.

    So that it holds for the row, too; `zlib.crc32` reads the last 32 bits.
    """
    start: np.ndarray = numbers ^ numbers >> SHIFT ^ checks >> SHIFT
    return start


def write(questions: Iterable[StoredQuestion], file: IO[bytes]) -> np.ndarray:
    """Write the records of questions; their rows, int64 [n + 1, 3], as of `built_questions`."""
    facts, start, largest, kinds = array.array("q"), 0, -1, 0
    for value, question, payload in questions:
        number, kind, data = number_of(value), 0, encode_text(question)
        if isinstance(value, str):
            own = b"" if number >= 0 else encode_text(value)
            kind, data = len(own) or NUMERAL, own + data
        if payload is not None and (found := payload_json(payload, f"of the id {value}")):
            more = encode_text(found)
            kind |= PAYLOAD
            data += more + len(more).to_bytes(_SIZE, "little")
        file.write(data)
        crc = zlib.crc32(data, number ^ number >> SHIFT ^ kind)
        facts.extend((start, number, crc | kind << SHIFT))
        start, largest, kinds = start + len(data), max(largest, number), kinds | kind
    facts.extend((start, largest, kinds << SHIFT))
    return np.array(facts, np.int64).reshape(-1, 3)


def split(data: bytes, number: int, kind: int) -> tuple[Id, bytes]:
    """The id of a record, as it came, and its text; `number` is that of its row."""
    size, stop = kind & ID_BYTES, len(data) - _payload_bytes(data, kind)
    if size:
        return decode_text(data[:size]), data[size:stop]
    return str(number) if kind & NUMERAL else number, data[:stop]


def payload(data: bytes, kind: int) -> str | None:
    """The JSON of the payload in a record; None where it has none."""
    size = _payload_bytes(data, kind)
    return decode_text(data[len(data) - size : -_SIZE]) if size else None


def _payload_bytes(data: bytes, kind: int) -> int:
    return int.from_bytes(data[-_SIZE:], "little") + _SIZE if kind & PAYLOAD else 0
