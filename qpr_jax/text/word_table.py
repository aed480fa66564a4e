"""A hash table of words, and the compiled loop that finds the words of texts in it.

The loop holds no lock of Python, so threads read texts in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from qpr_jax.machine import compile_loop

_END = ord("\n")
_WORD_BYTES = b"0123456789_abcdefghijklmnopqrstuvwxyz" + bytes(range(128, 256))
# The byte of a word in lower case, or 0 for a byte between words.
_LOWER = np.array([c if c in _WORD_BYTES else 0 for c in bytes(range(256)).lower()], np.uint8)
_FIRST_HASH = 2166136261  # of FNV-1a


class WordTable:
    """Ids of words, which threads may share; 20 to 28 bytes a word, and those of its spelling."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """Make the table of the ids, from 1, of words in lower case."""
        self._spellings, self._starts = _encode(ids)
        self._ids = np.fromiter(ids.values(), np.int32, len(ids))
        self._slots = np.full(2 << len(ids).bit_length(), -1, np.int32)  # at least twice as many
        _fill_slots(self._spellings, self._starts, self._slots)

    def read(
        self, lines: bytearray, count: int, max_tokens: int
    ) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
        """Find the words of `count` texts, and convert their ASCII letters to lower case in place.

        The texts are UTF-8, a newline after each and in none. A word is a run of ASCII letters,
        digits, "_" and bytes beyond ASCII.

        Returns:
          The ids, int32 [tokens], without those of texts beyond `max_tokens`; their offsets, int64
          [count + 1]; how many texts have more tokens; and for each word that is not in the table,
          also beyond `max_tokens`, int64 [m, 3], its place in the ids, or -1, and where it starts
          and stops in the lines.
        """
        most = len(lines) // 2
        max_tokens = min(int(max_tokens), most)
        ids = np.empty(min(most, count * max_tokens), np.int32)
        offsets = np.empty(count + 1, np.int64)
        unknown = np.empty((most, 3), np.int64)
        tokens, truncated, others = _read(
            np.frombuffer(lines, np.uint8),
            self._slots,
            self._starts,
            self._spellings,
            self._ids,
            max_tokens,
            ids,
            offsets,
            unknown,
        )
        return ids[:tokens].copy(), offsets, truncated, unknown[:others]


def _encode(words: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of words, and where each starts, int64 [n + 1]."""
    spellings = [word.encode("utf-8", "surrogatepass") for word in words]
    starts = np.zeros(len(spellings) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, spellings), np.int64, len(spellings)), out=starts[1:])
    # Not read-only, since numba would compile the loops a second time for such arrays.
    return np.frombuffer(bytearray().join(spellings), np.uint8), starts


@compile_loop()
def _add_byte(hash, byte):  # type: ignore[no-untyped-def]
    return ((hash ^ byte) * 16777619) & 0xFFFFFFFF


@compile_loop()
def _fill_slots(spellings, starts, slots):  # type: ignore[no-untyped-def]
    """Put the number of each word into the first free slot from that of its hash."""
    for word in range(len(starts) - 1):
        hash = np.int64(_FIRST_HASH)
        for at in range(starts[word], starts[word + 1]):
            hash = _add_byte(hash, spellings[at])
        slot = hash & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = word


@compile_loop()
def _find(hash, lines, start, stop, slots, starts, spellings):  # type: ignore[no-untyped-def]
    """Return the number of the word lines[start:stop], or -1."""
    slot = hash & (len(slots) - 1)
    while slots[slot] >= 0:
        word = slots[slot]
        at, first = start, starts[word]
        if starts[word + 1] - first == stop - start:
            while at < stop and lines[at] == spellings[first + at - start]:
                at += 1
            if at == stop:
                return word
        slot = (slot + 1) & (len(slots) - 1)
    return -1


@compile_loop()
def _read(  # type: ignore[no-untyped-def]
    lines, slots, starts, spellings, word_ids, max_tokens, ids, offsets, unknown
):
    """See `WordTable.read`; return the number of ids, truncated texts and unknown words."""
    text = count = truncated = others = 0
    limit = max_tokens  # of `count` in this text; tokens beyond it are counted and not written
    offsets[0] = 0
    start, hash = np.int64(-1), np.int64(_FIRST_HASH)
    for at in range(len(lines)):
        byte = _LOWER[lines[at]]
        if byte:
            if start < 0:
                start = at
            lines[at] = byte
            hash = _add_byte(hash, byte)
            continue
        if start >= 0:
            word = _find(hash, lines, start, at, slots, starts, spellings)
            if word < 0:
                unknown[others, 0] = count if count < limit else -1
                unknown[others, 1], unknown[others, 2] = start, at
                others += 1
            elif count < limit:
                ids[count] = word_ids[word]
            count += 1
            start, hash = np.int64(-1), np.int64(_FIRST_HASH)
        if lines[at] == _END:
            truncated += count > limit
            count = min(count, limit)
            text += 1
            offsets[text] = count
            limit = count + max_tokens
    return count, truncated, others
