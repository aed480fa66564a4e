"""Document frequencies: the number of questions that contain each word and n-gram."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.index import text_kernels

FORMAT = "qpr_jax statistics 1"
_CHUNK = 10_000  # texts counted at a time
_REMEDY = "make the index again"


class Statistics:
    """Document frequencies by hash, of words, word pairs and character 3- and 4-grams.

    The tables have a fixed size for any number of documents. Any number of threads may read them
    while one thread changes them.

    Attributes:
      count: number of documents.
      words: number of words in all documents.
      counters: the tables; see `text_kernels.Counters`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.words = 0
        self.counters = text_kernels.empty_counters()

    @classmethod
    def build(cls, texts: Iterable[str]) -> Statistics:
        """Count texts; does not keep them."""
        statistics, rest = cls(), iter(texts)
        while chunk := list(itertools.islice(rest, _CHUNK)):
            statistics.add(chunk)
        return statistics

    @property
    def mean_length(self) -> float:
        """The mean number of words in a document, at least 1."""
        return max(1.0, self.words / max(1, self.count))

    def add(self, texts: Sequence[str]) -> None:
        """Add these texts to the counts."""
        self._change(texts, 1)

    def remove(self, texts: Sequence[str]) -> None:
        """Subtract texts that were added: the exact inverse of `add`."""
        self._change(texts, -1)

    def word_weights(self, words: Sequence[str]) -> np.ndarray:
        """Return log((N + 1) / (df + 1)) of words, where df of N documents have it: float64 [n]."""
        rows = text_kernels.word_hashes(words) >> np.uint64(64 - text_kernels.WORD_BITS)
        counts = self.counters.words[rows.astype(np.int64)]
        return np.maximum(0, np.log((self.count + 1) / (counts + 1.0)))

    def to_bytes(self) -> bytes:
        """Serialize as safetensors: the non-zero rows of each table, and their counts."""
        from safetensors.numpy import save

        tensors: dict[str, np.ndarray] = {}
        for name, table in self.counters._asdict().items():
            rows = np.flatnonzero(table).astype(np.uint32)
            tensors |= {f"{name}.rows": rows, f"{name}.counts": _narrow(table[rows])}
        facts = json.dumps({"format": FORMAT, "count": self.count, "words": self.words})
        return bytes(save(tensors, {"statistics": facts}))

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Statistics:
        """Parse the output of `to_bytes`; UserError, which names `where`, for anything else."""
        facts, tensors = _parse(data, where)
        statistics = cls()
        statistics.count, statistics.words = facts["count"], facts["words"]
        for name, table in statistics.counters._asdict().items():
            rows, counts = tensors.get(f"{name}.rows"), tensors.get(f"{name}.counts")
            if rows is None or counts is None or not _is_table(rows, counts, len(table)):
                raise _damage(where, f"no table of {name}")
            table[rows] = counts
        return statistics

    def _change(self, texts: Sequence[str], step: int) -> None:
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            data, offsets = text_kernels.as_bytes(chunk)
            inputs = (data, offsets, tuple(self.counters), text_kernels.make_buffers())
            self.words += step * text_kernels.count_texts(*inputs, step)
            self.count += step * len(chunk)


def _narrow(counts: np.ndarray) -> np.ndarray:
    """Convert to the smallest integer type that holds the numbers."""
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))


def _parse(data: bytes, where: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Parse the facts and the tensors of the output of `to_bytes`."""
    from qpr_jax.encoders.base import parse_tensors

    tensors = parse_tensors(data, where)
    size = int.from_bytes(data[:8], "little")  # parsed, so the header is JSON
    facts = json.loads(data[8 : 8 + size]).get("__metadata__", {}).get("statistics", "")
    try:
        facts = json.loads(facts)
        known = facts["format"] == FORMAT and min(facts["count"], facts["words"]) >= 0
    except (ValueError, TypeError, KeyError):
        known = False
    if not known:
        raise _damage(where, "another file")
    return facts, tensors


def _is_table(rows: np.ndarray, counts: np.ndarray, size: int) -> bool:
    if (
        rows.ndim != 1
        or rows.shape != counts.shape
        or {rows.dtype.kind, counts.dtype.kind} != {"u"}
    ):
        return False
    # No `np.diff`: a difference of unsigned numbers would wrap around.
    return not len(rows) or bool(rows[-1] < size and (rows[1:] > rows[:-1]).all())


def _damage(where: str, found: str) -> UserError:
    return UserError(f"{where}: expected statistics ({FORMAT!r}), got {found}", remedy=_REMEDY)
