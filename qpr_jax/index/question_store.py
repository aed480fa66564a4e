"""Many strings in two arrays, which may lie in files larger than memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


def encoded(text: str) -> bytes:
    """UTF-8 of any string, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, eq=False)
class Texts:
    """Text i is UTF-8 in data[offsets[i]:offsets[i + 1]]; uint8 and int64, in memory or mapped."""

    data: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, at: int) -> str:
        start, stop = int(self.offsets[at]), int(self.offsets[at + 1])
        return self.data[start:stop].tobytes().decode("utf-8", "surrogatepass")

    def some(self, positions: Iterable[int]) -> list[str]:
        """The texts at these positions."""
        return [self[at] for at in positions]


def texts_of(strings: Sequence[str]) -> Texts:
    """The strings, in memory."""
    parts = [encoded(text) for text in strings]
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return Texts(np.frombuffer(b"".join(parts), np.uint8), offsets)
