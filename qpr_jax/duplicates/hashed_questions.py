"""The hashes of questions, made while they go to disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

from qpr_jax.duplicates.cells import block_of, hash_block, kind_of, require_column
from qpr_jax.index.base import StoredQuestion
from qpr_jax.text.tokenizer import canonical

_BYTES = 16  # of the hash of a text


class HashedQuestions:
    """Questions on their way to disk, and the hashes of their texts, spellings and blocks."""

    def __init__(
        self, questions: Iterable[StoredQuestion], within: str | None, alone: str | None
    ) -> None:
        """alone: as of `hash_block`."""
        self._questions, self._within, self._alone = questions, within, alone
        self._hashes, self._blocks, self._spellings = bytearray(), bytearray(), bytearray()
        self.values: set[bytes] = set()  # the blocks of rows with a value
        self.kinds: dict[str, set[str]] = {}

    def __iter__(self) -> Iterator[StoredQuestion]:
        for question in self._questions:
            block, payload = b"", question.payload or {}
            for name, value in payload.items():
                self.kinds.setdefault(name, set()).add(kind_of(value))
            if self._within is not None:
                value = block_of(payload.get(self._within))
                block = hash_block(value, question, self._alone)
                if value is not None:
                    self.values.add(block)
                self._blocks += block
            text = question.question.encode("utf-8", "surrogatepass")
            self._hashes += hashlib.blake2b(text, digest_size=_BYTES, key=block).digest()
            plain = canonical(question.question).encode("utf-8", "surrogatepass")
            self._spellings += hashlib.blake2b(plain, digest_size=8).digest()
            yield question

    def hashes(self) -> np.ndarray:
        """Of block and text of each row: uint64 [R, 2]."""
        return np.frombuffer(bytes(self._hashes), ">u8").astype(np.uint64).reshape(-1, 2)

    def spellings(self) -> np.ndarray:
        """The hash of the canonical text of each row, int64 [R]."""
        return np.frombuffer(bytes(self._spellings), ">i8").astype(np.int64)

    def blocks(self) -> np.ndarray:
        """The hash of the block of each row, int64 [R]; UserError where no row has the column."""
        if self._within is not None and self._blocks:
            require_column(self._within, self.kinds, "within")
        return np.frombuffer(bytes(self._blocks), ">i8").astype(np.int64)
