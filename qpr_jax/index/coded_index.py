"""An index of FAISS with lists of vectors as they are, searched without FAISS.

FAISS trains it, and reads and writes its file. In memory its lists are `CodedLists`.
"""

from __future__ import annotations

from collections.abc import Callable

import faiss
import numpy as np

from qpr_jax.index.coded_lists import CodedLists
from qpr_jax.index.faiss_lists import centroids_of, nearest_lists
from qpr_jax.index.recipe import Recipe

_PROBED = 1 << 22  # lists of all queries that are held at once


class CodedIndex:
    """The lists of an index of FAISS, out of it.

    Any number of threads may search lists that no other changes.

    Attributes:
      index: the index, whose lists are empty.
      lists: its lists.
    """

    def __init__(self, index: faiss.IndexIVFFlat, sizes: np.ndarray) -> None:
        """Make empty lists for an index without entries; sizes: int64 [L], those to come."""
        self.index = index
        centers = centroids_of(index).reconstruct_n(0, index.nlist)
        ip = index.metric_type == faiss.METRIC_INNER_PRODUCT
        self.lists = CodedLists(centers, sizes, int(sizes.sum()), ip=ip)
        count = np.array([len(centers)])
        self._centers = CodedLists(centers.mean(axis=0)[None], count, len(centers), ip=ip)
        self._centers.add(0, np.arange(len(centers)), centers)
        self._none = np.zeros(len(centers), bool)  # of the centers is removed
        self._by_graph = isinstance(faiss.downcast_index(index.quantizer), faiss.IndexHNSW)

    @classmethod
    def of(cls, index: faiss.IndexIVFFlat) -> CodedIndex:
        """Take the entries of an index, whose memory is freed."""
        lists = faiss.downcast_InvertedLists(index.invlists)
        sizes = [lists.list_size(number) for number in range(index.nlist)]
        coded = cls(index, np.array(sizes))
        for number in filter(lists.list_size, range(index.nlist)):
            codes = faiss.rev_swig_ptr(lists.get_codes(number), sizes[number] * index.code_size)
            rows = faiss.rev_swig_ptr(lists.get_ids(number), sizes[number])
            coded.lists.add(number, rows, codes.view(np.float32).reshape(len(rows), index.d))
        empty = faiss.ArrayInvertedLists(index.nlist, index.code_size)
        index.replace_invlists(empty, False)  # which stays Python's to free
        coded.index = faiss.clone_index(index)
        return coded

    def whole(self) -> faiss.IndexIVFFlat:
        """A copy of the index with its lists."""
        index, lists = faiss.clone_index(self.index), self.lists
        for number in filter(lists.count, range(len(lists))):
            rows, vectors = lists.entries(number)
            codes = vectors.view(np.uint8)
            index.invlists.add_entries(number, len(rows), *map(faiss.swig_ptr, (rows, codes)))
        index.ntotal = sum(map(lists.count, range(len(lists))))
        return index

    def add(self, vectors: np.ndarray, rows: np.ndarray, assignments: int) -> None:
        """As of `faiss_lists.add_rows`."""
        for lists in nearest_lists(self.index, vectors, assignments).T:
            for number in np.unique(lists).tolist():
                places = np.flatnonzero(lists == number)
                self.lists.add(number, rows[places], vectors[places])

    def search(
        self,
        vectors: np.ndarray,
        k: int,
        breadth: int | None,
        recipe: Recipe,
        removed: np.ndarray,
        before: Callable[[np.ndarray], object],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the nearest rows, as `FaissIndex.search`.

        Args:
          vectors: float32 [n, d].
          breadth: how many lists a search reads; None: all.
          recipe: as built.
          removed: bool [rows or more].
          before: called with the lists of some queries, int64 [m, p], before these are read.
        """
        vectors = np.require(vectors, np.float32, ["C", "W"])
        size = max(1, _PROBED // (breadth or len(self.lists)))
        if len(vectors) > size:
            parts = [
                self.search(vectors[i : i + size], k, breadth, recipe, removed, before)
                for i in range(0, len(vectors), size)
            ]
            return np.concatenate([d for d, _ in parts]), np.concatenate([r for _, r in parts])
        threads = faiss.omp_get_max_threads()
        lists = self._lists_of(vectors, breadth, recipe.probes, threads)
        before(lists)
        return self.lists.search(
            *(vectors, lists, k, removed), copies=recipe.assignments, threads=threads
        )

    def _lists_of(
        self, vectors: np.ndarray, breadth: int | None, probes: int, threads: int
    ) -> np.ndarray:
        """The nearest lists of each vector, int64 [n, breadth]; all where it is None."""
        count = len(self.lists)
        if breadth is None:
            return np.tile(np.arange(count), (len(vectors), 1))
        # A graph over the centroids leads to few lists reliably, and never surely to all.
        if self._by_graph and breadth <= probes:
            near: np.ndarray = self.index.quantizer.search(vectors, breadth)[1]
            return near
        one = np.zeros((len(vectors), 1), np.int64)
        return self._centers.search(vectors, one, breadth, self._none, threads=threads)[1]


def has_vectors(index: faiss.Index) -> bool:
    """Whether an index has lists of vectors as they are, which `CodedIndex` can take."""
    return type(index) is faiss.IndexIVFFlat
