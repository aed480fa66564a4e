"""BM25 over the questions of an index: it adds candidates that share words with a query.

It uses an inverted index over hashes of words, in memory. A search skips removed rows, but they
still count in the document frequencies until a compaction, as in Lucene.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.index.question_index import QuestionIndex
from qpr_jax.index.text_kernels import (
    MAX_WORDS,
    WORD_BITS,
    as_bytes,
    bucket,
    make_buffers,
    read_words,
)
from qpr_jax.loops import compile_loop

K1, B = 0.9, 0.4  # of BM25; also of `evaluation.lexical`
_CHUNK = 65_536  # texts read at once
# The inverted index is rebuilt for more new questions than _PENDING + _SHARE of the indexed ones;
# fewer are scanned in each search.
_PENDING, _SHARE = 4096, 0.05


class _Documents(NamedTuple):
    """The distinct words of n texts, m in all, text after text.

    starts: int64 [n + 1], where each text begins. words: int32 [m], buckets of their hashes. times:
    uint8 [m], occurrences of each in its text. lengths: uint8 [n], words of each text.
    """

    starts: np.ndarray
    words: np.ndarray
    times: np.ndarray
    lengths: np.ndarray


class LexicalIndex:
    """BM25 search over the questions of `index`; the inverted index is built at the first search.

    The caller ensures that `index` does not change during a search. Memory: at most 5 bytes for
    each distinct word of a question, and 9 bytes for each question.
    """

    def __init__(self, index: QuestionIndex) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._built = 0  # rows in the postings; those after them are in `_pending`
        self._starts = np.zeros((1 << WORD_BITS) + 1, np.int64)
        self._rows = np.zeros(0, np.int32)
        self._times = np.zeros(0, np.uint8)
        self._lengths = np.zeros(0, np.uint8)
        self._pending = _concatenate([])
        self._words = 0  # of all questions
        self._scores = np.zeros(0, np.float32)
        self._touched = np.zeros(0, np.int32)

    def search(self, queries: Sequence[str], k: int) -> np.ndarray:
        """Find the rows of the `k` best questions of each query, int64 [n, k], padded with -1.

        Every hit shares a word with the query; ties go by row.
        """
        with self._lock:
            self._catch_up()
            asked = read_documents(queries)
            found = np.full((len(queries), k), -1, np.int64)
            rows = self._built + len(self._pending.lengths)
            postings = (self._starts, self._rows, self._times, self._lengths)
            scratch = (self._scores, self._touched)
            removed = self._index.store.removed_rows
            mean = max(1.0, self._words / max(1, rows))
            _search(*asked[:2], *postings, *self._pending, removed, mean, *scratch, found)
            return found

    def _catch_up(self) -> None:
        """Read the questions added since the last search."""
        known = self._built + len(self._pending.lengths)
        rows = self._index.rows
        if rows == known:
            return
        if rows - self._built > _PENDING + _SHARE * self._built:
            self._build(rows)
        else:
            new = self._documents(known, rows)
            self._pending = _concatenate([self._pending, *new])
        lengths = (self._lengths, self._pending.lengths)
        self._words = sum(int(part.sum(dtype=np.int64)) for part in lengths)
        self._scores = np.zeros(rows, np.float32)
        self._touched = np.zeros(rows, np.int32)

    def _build(self, rows: int) -> None:
        documents = _concatenate(self._documents(0, rows))
        counts = np.bincount(documents.words, minlength=1 << WORD_BITS)
        np.cumsum(counts, out=self._starts[1:])
        self._rows = np.empty(len(documents.words), np.int32)
        self._times = np.empty(len(documents.words), np.uint8)
        _invert(*documents[:3], self._starts[:-1].copy(), self._rows, self._times)
        self._lengths, self._built, self._pending = documents.lengths, rows, _concatenate([])

    def _documents(self, start: int, stop: int) -> list[_Documents]:
        """Read the words of the questions in these rows."""
        chunks = (np.arange(at, min(at + _CHUNK, stop)) for at in range(start, stop, _CHUNK))
        return [read_documents(self._index.store.fields(rows)[1]) for rows in chunks]


def read_documents(texts: Sequence[str]) -> _Documents:
    """Read the distinct words of texts."""
    data, offsets = as_bytes(texts)
    size = MAX_WORDS * len(texts)
    most = min(size, (len(data) + len(texts) + 1) // 2 + 1)  # a word and the blank after it
    found = _Documents(
        np.zeros(len(texts) + 1, np.int64),
        np.empty(most, np.int32),
        np.empty(most, np.uint8),
        np.empty(len(texts), np.uint8),
    )
    count = _read(data, offsets, make_buffers(), *found)
    return found._replace(words=found.words[:count].copy(), times=found.times[:count].copy())


def _concatenate(parts: Sequence[_Documents]) -> _Documents:
    parts = [_EMPTY, *parts]
    ends = np.cumsum([len(part.words) for part in parts])
    starts = [part.starts[1:] + end for part, end in zip(parts[1:], ends, strict=False)]
    return _Documents(
        np.concatenate([np.zeros(1, np.int64), *starts]),
        *(np.concatenate([part[i] for part in parts]) for i in (1, 2, 3)),
    )


_EMPTY = _Documents(
    np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.uint8)
)


@compile_loop()
def _read(data, offsets, buffers, starts, words, times, lengths):  # type: ignore[no-untyped-def]
    """Fill the arrays of `_Documents`; return the number m of distinct words."""
    size, (_, hashes) = 0, buffers
    for i in range(len(lengths)):
        count, _ = read_words(data, offsets[i], offsets[i + 1], buffers)
        first = size
        for w in range(count):
            word = np.int32(bucket(hashes[w], WORD_BITS))
            at = first
            while at < size and words[at] != word:
                at += 1
            if at == size:
                words[at], times[at] = word, np.uint8(0)
                size += 1
            times[at] += np.uint8(1)
        lengths[i], starts[i + 1] = count, size
    return size


@compile_loop()
def _invert(starts, words, times, ends, rows, frequencies):  # type: ignore[no-untyped-def]
    """Fill the postings, `rows` and `frequencies`; `ends`: where those of each word begin."""
    for row in range(len(starts) - 1):
        for at in range(starts[row], starts[row + 1]):
            place = ends[words[at]]
            rows[place], frequencies[place] = row, times[at]
            ends[words[at]] = place + 1


@compile_loop()
def _search(  # type: ignore[no-untyped-def]
    asked_starts,
    asked_words,
    starts,
    rows,
    times,
    lengths,
    new_starts,
    new_words,
    new_times,
    new_lengths,
    removed,
    mean,
    scores,
    touched,
    found,
):
    """Write the best rows of each query to `found`; `scores` is all 0 before and after."""
    built, added = len(lengths), len(new_lengths)
    best = np.zeros(found.shape[1], np.float32)
    for query in range(len(found)):
        asked = asked_words[asked_starts[query] : asked_starts[query + 1]]
        counts = np.zeros(len(asked), np.int64)
        for w in range(len(asked)):
            counts[w] = starts[asked[w] + 1] - starts[asked[w]]
        for at in range(len(new_words)):
            for w in range(len(asked)):
                counts[w] += new_words[at] == asked[w]
        size = 0
        for w in range(len(asked)):
            weight = np.log(1 + (built + added - counts[w] + 0.5) / (counts[w] + 0.5))
            for at in range(starts[asked[w]], starts[asked[w] + 1]):
                row = rows[at]
                if not removed[row]:
                    if scores[row] == 0:
                        touched[size] = row
                        size += 1
                    scores[row] += weight * _gain(times[at], lengths[row], mean)
            for i in range(added):
                row = built + i
                for at in range(new_starts[i], new_starts[i + 1]):
                    if new_words[at] == asked[w] and not removed[row]:
                        if scores[row] == 0:
                            touched[size] = row
                            size += 1
                        scores[row] += weight * _gain(new_times[at], new_lengths[i], mean)
        kept = 0
        for t in range(size):
            row = touched[t]
            score, scores[row] = scores[row], np.float32(0)
            at = min(kept, len(best) - 1)
            if kept == len(best) and not _before(score, row, best[at], found[query, at]):
                continue
            while at > 0 and _before(score, row, best[at - 1], found[query, at - 1]):
                best[at], found[query, at] = best[at - 1], found[query, at - 1]
                at -= 1
            best[at], found[query, at] = score, row
            kept = min(kept + 1, len(best))


@compile_loop()
def _before(score, row, other_score, other_row):  # type: ignore[no-untyped-def]
    """Return whether a question ranks before another."""
    return score > other_score or (score == other_score and row < other_row)


@compile_loop()
def _gain(times, length, mean):  # type: ignore[no-untyped-def]
    """Compute the term-frequency factor of BM25 for a word that occurs `times` times."""
    return times * (K1 + 1) / (times + K1 * (1 - B + B * length / mean))
