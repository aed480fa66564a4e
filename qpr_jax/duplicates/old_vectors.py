"""The vectors of texts that an index has, so that only new texts are encoded."""

from __future__ import annotations

from collections.abc import Iterator

import faiss
import numpy as np

from qpr_jax.duplicates.rows import Rows
from qpr_jax.index.faiss_index import FaissIndex
from qpr_jax.index.question_index import QuestionIndex

_CHUNK = 65_536  # entries whose texts, or vectors, are in memory at once


def fill_from_index(rows: Rows, index: QuestionIndex, vectors: np.ndarray) -> np.ndarray:
    """Copy what an index stores exactly to vectors float32 [E, d]; for which entries, bool [E]."""
    known = np.zeros(len(vectors), bool)
    if not isinstance(index.vectors, FaissIndex):
        return known
    entry_of = np.full(index.store.rows, -1, np.int64)
    old = np.flatnonzero(rows.first >= rows.table_rows)
    for start in range(0, len(old), _CHUNK):
        own = old[start : start + _CHUNK]
        ids, texts = rows.fields(rows.first[own])
        there = index.store.rows_of(ids)
        own, texts = own[there >= 0], [t for t, row in zip(texts, there, strict=True) if row >= 0]
        there = there[there >= 0]
        same = np.array([*map(str.__eq__, texts, index.store.fields(there)[1])], bool)
        entry_of[there[same]] = own[same]
    for stored, values in _stored(index.vectors.whole):
        entries = entry_of[stored]
        vectors[entries[entries >= 0]] = values[entries >= 0]
        known[entries[entries >= 0]] = True
    return known


def _stored(index: faiss.Index) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows int64 [n] and their vectors float32 [n, d] as they were added, in parts.

    None where the index keeps codes in their place. Removed rows are among them.
    """
    if isinstance(index, faiss.IndexFlat):
        for start in range(0, index.ntotal, _CHUNK):
            count = min(_CHUNK, index.ntotal - start)
            yield np.arange(start, start + count), index.reconstruct_n(start, count)
    elif isinstance(index, faiss.IndexIVFFlat):
        lists = index.invlists
        for number in filter(lists.list_size, range(index.nlist)):
            size = lists.list_size(number)
            rows = faiss.rev_swig_ptr(lists.get_ids(number), size)
            codes = faiss.rev_swig_ptr(lists.get_codes(number), size * index.code_size)
            yield rows.copy(), codes.view(np.float32).reshape(size, -1).copy()
