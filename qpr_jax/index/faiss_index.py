"""FAISS indexes: built from a stream of vectors, and searched among the rows that are left."""

from __future__ import annotations

import logging
import pathlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Self

import faiss
import numpy as np

from qpr_jax import progress
from qpr_jax.files import StrPath, write_atomically
from qpr_jax.index.base import SHARDS, VectorsOf
from qpr_jax.index.coded_index import CodedIndex, has_vectors
from qpr_jax.index.exact import FAISS_METRICS, ExactTopK, recall_of
from qpr_jax.index.faiss_lists import (
    add_in_shards,
    add_rows,
    centroids_of,
    padded,
    train_codes,
)
from qpr_jax.index.recipe import (
    Recipe,
    check_faiss,
    check_recipe,
    fit_faiss,
    lists_for,
    training_points,
)
from qpr_jax.index.stored_lists import StoredLists, sums_path, write_sums

log = logging.getLogger(__name__)
_CHUNK = 32_768
# A list doubles its memory when it grows, so building in one go may take twice the memory. Above
# this many bytes it is built in shards on disk, whose sizes say how much each list takes.
SHARD_BYTES = 1 << 30
RECALL_QUERIES, RECALL_AT = 200, 10
_PROBED = 1 << 22  # lists of all queries that are held at once
_Found = tuple[np.ndarray, np.ndarray]  # distances float32 and rows int64, [n, k]
_Search = Callable[[np.ndarray, int, int | None], _Found]  # vectors, k and breadth to these


class FaissIndex:
    """A `VectorIndex` of FAISS. Rows are numbered from 0 without gaps."""

    def __init__(
        self,
        index: faiss.Index,
        recipe: Recipe,
        recall: float,
        dimension: int,
        stored: StoredLists | None = None,
    ) -> None:
        """stored: from which the lists of `index` are read when they are used."""
        self.recipe, self.recall, self.dimension = recipe, recall, dimension
        self._index, self._stored = index, stored  # None when all lists are read
        # Lists of vectors as they are, in place of those of `index`, from the first search on.
        self._coded = stored.coded if stored else None
        self._coding = threading.Lock()
        self._rows = index.ntotal // recipe.assignments
        self._removed = np.zeros(self._rows, bool)
        self._removed_count = 0
        self._live_bits: np.ndarray | None = None  # for FAISS; None while no row is removed

    def __repr__(self) -> str:
        kind = f"{self.recipe.factory}, {self.recipe.metric}"
        return f"<FaissIndex: {kind}, {len(self):,} vectors of {self.dimension} dimensions>"

    check = staticmethod(check_faiss)
    fit = staticmethod(fit_faiss)

    @classmethod
    def empty(cls, recipe: Recipe, dimension: int) -> Self:
        """A plain index without rows."""
        index = faiss.IndexFlat(_width(recipe, dimension), FAISS_METRICS[recipe.metric])
        return cls(index, recipe, 1.0, dimension)

    @classmethod
    def build(
        cls, recipe: Recipe, vectors_of: VectorsOf, count: int, folder: pathlib.Path | None = None
    ) -> Self:
        """Index `count` rows as they come, `recipe` taken as it is, and measure the recall.

        Trains on all rows, or on a fixed sample of 256 a list where there are more. At most the
        training vectors and the index are held at once.

        Args:
          recipe: of `fit_recipe`, which knows what can be trained.
          vectors_of: rows int64 [n] to float32 [n, d].
          count: 1 or more.
          folder: an existing one for parts of a large index; where None, one in the system's
            temporary directory.
        """
        rng = np.random.default_rng(0)
        sample = _sample(rng, count, training_points(recipe.factory))
        training = np.ascontiguousarray(vectors_of(sample), np.float32)
        dimension = training.shape[1]
        check_recipe(recipe, dimension)
        index = untrained_index(recipe, dimension)
        queries = _sample(rng, count, RECALL_QUERIES)
        query_vectors = np.ascontiguousarray(vectors_of(queries), np.float32)
        exact = ExactTopK(query_vectors, RECALL_AT + 1, recipe.metric)
        if not index.is_trained:
            log.info("training %s on %d questions", recipe.factory, len(sample))
            index.train(padded(training, index.d))
        if recipe.assignments > 1 and isinstance(index, faiss.IndexIVFScalarQuantizer):
            train_codes(index, padded(training, index.d), recipe.assignments)
        whole = len(sample) == count

        def chunks(start: int, stop: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for first in range(start, stop, _CHUNK):
                rows = np.arange(first, min(first + _CHUNK, stop))
                vectors = training[rows] if whole else vectors_of(rows)
                exact.add(rows, vectors)
                yield rows, np.ascontiguousarray(vectors, np.float32)
                show(int(rows[-1]) + 1, "")

        if not whole:
            training = training[:0].copy()  # a view would keep it all
        code = index.code_size + 8 if isinstance(index, faiss.IndexIVF) else 0
        with progress.bar("indexed", count) as show:
            if count * code * recipe.assignments <= SHARD_BYTES:
                for rows, vectors in chunks(0, count):
                    add_rows(index, vectors, rows, recipe.assignments)
            else:
                size = max(_CHUNK, SHARD_BYTES // (4 * code * recipe.assignments))
                with tempfile.TemporaryDirectory(dir=folder, prefix=SHARDS) as parts:
                    add_in_shards(index, recipe, chunks, count, size, pathlib.Path(parts))
        built = cls(index, recipe, 1.0, dimension)
        # By FAISS, which finds the same: it still has the lists, for `save`.
        found = built._search_wider(built._search_faiss, exact.queries, RECALL_AT + 1)[1]
        built.recall = recall_of(queries, exact.rows, found, RECALL_AT)
        return built

    @classmethod
    def read(cls, path: StrPath, recipe: Recipe, recall: float, dimension: int) -> Self:
        """The index of a file that `save` wrote; RuntimeError where FAISS cannot read it."""
        if sums_path(path).exists():
            stored = StoredLists(pathlib.Path(path))
            return cls(stored.index, recipe, recall, dimension, stored)
        return cls(faiss.read_index(str(path)), recipe, recall, dimension)

    def save(self, path: StrPath) -> None:
        """Write it as FAISS does, and the SHA-256 of its lists."""
        with write_atomically(path) as file:
            faiss.write_index(self.whole, faiss.PyCallbackIOWriter(file.write))
        write_sums(path)

    @property
    def whole(self) -> faiss.Index:
        """The index of FAISS, or a copy, with all its lists; UserError where one is damaged."""
        if stored := self._stored:
            stored.read_all()
        return self._coded.whole() if self._coded else self._index

    def __len__(self) -> int:
        return self._rows - self._removed_count

    def add(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Store vectors float32 [n, d] in the nearest lists, as the next rows."""
        vectors, copies = np.ascontiguousarray(vectors, np.float32), self.recipe.assignments
        if self._coded:
            self._coded.add(vectors, rows, copies)
        else:
            add_rows(self._index, vectors, rows, copies)
        self._rows += len(rows)
        if self._rows > len(self._removed):
            room = max(self._rows, 2 * len(self._removed)) - len(self._removed)
            self._removed = np.concatenate([self._removed, np.zeros(room, bool)])
        self._update_bits()

    def remove(self, rows: np.ndarray) -> None:
        """Exclude these rows from searches. FAISS keeps them until the index is built again."""
        rows = np.unique(rows)
        self._removed_count += len(rows) - int(self._removed[rows].sum())
        self._removed[rows] = True
        self._update_bits()

    def _update_bits(self) -> None:
        if self._removed_count:
            self._live_bits = np.packbits(~self._removed[: self._rows], bitorder="little")

    def search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the `k` nearest rows of each vector, nearest first.

        The more rows were removed, the wider it searches, so that it finds what an index of the
        rows that are left would find. A query for which fewer than `k` rows come out is searched
        again among all, so results are padded only if fewer than `k` rows exist.

        Returns:
          Distances float32 [n, k], squared Euclidean or the inner product times -1, and rows int64
          [n, k]; inf and -1 in places that stay empty.
        """
        return self._search_wider(
            self._search_codes if has_vectors(self._index) else self._search_faiss, vectors, k
        )

    def _search_wider(self, search: _Search, vectors: np.ndarray, k: int) -> _Found:
        """Search as wide as removals ask for, and again among all for queries that lack rows."""
        vectors = padded(vectors, self._index.d)
        breadth = self._breadth(k)
        distances, rows = search(vectors, k, breadth)
        if breadth is not None and (rows[:, -1] < 0).any():
            short = np.flatnonzero(rows[:, -1] < 0)
            distances[short], rows[short] = search(vectors[short], k, None)
        return distances, rows

    def _breadth(self, k: int) -> int | None:
        """How many lists (of HNSW: candidates) a search goes through; None for all there are."""
        index, recipe, live = self._index, self.recipe, len(self)
        if isinstance(index, faiss.IndexIVF):
            probes = recipe.probes
            if self._removed_count:  # the share of the lists that a new index would read
                lists = lists_for(live, index.nlist, probes=probes)
                probes = -(-probes * index.nlist // lists) if lists else index.nlist
            return probes if probes < index.nlist else None
        if isinstance(index, faiss.IndexHNSW):
            candidates = max(16 * recipe.probes, k)
            if self._removed_count:  # of the candidates as many are left as a new index would keep
                candidates = -(-candidates * self._rows // max(live, 1))
                return candidates if candidates < live else None
            return candidates
        return None

    def _search_codes(self, vectors: np.ndarray, k: int, breadth: int | None) -> _Found:
        """As `search`, in the nearest `breadth` lists of uncompressed vectors; None: in all."""
        parameters = k, breadth, self.recipe, self._removed, self._read
        return self._in_codes().search(vectors, *parameters)

    def _in_codes(self) -> CodedIndex:
        """The lists, which are taken from FAISS at the first call: it writes an index at most."""
        with self._coding:
            if self._coded is None:
                self._coded = CodedIndex.of(self._index)
                self._index = self._coded.index
            return self._coded

    def _read(self, lists: np.ndarray) -> None:
        """Read these lists, int64 [n, p], unless they are read."""
        if (stored := self._stored) and stored.read(lists):  # another thread may set it
            self._stored = None

    def _search_faiss(self, vectors: np.ndarray, k: int, breadth: int | None) -> _Found:
        """As `search`, by FAISS, in `breadth` lists, or of HNSW candidates; None: in all."""
        copies = self.recipe.assignments
        distances, rows = _unique_rows(self._found(vectors, k * copies, breadth), k, copies)
        if self.recipe.metric == "ip":
            distances = -distances
        return np.where(rows < 0, np.float32(np.inf), distances), rows

    def _found(self, vectors: np.ndarray, k: int, breadth: int | None) -> _Found:
        """What FAISS finds: distances and rows [n, k], a row once for each list it stands in."""
        index = self._index
        live = None if self._live_bits is None else faiss.IDSelectorBitmap(self._live_bits)
        if isinstance(index, faiss.IndexIVF):
            probes = index.nlist if breadth is None else breadth
            parameters = faiss.SearchParametersIVF(sel=live, nprobe=probes)
            # A graph over the centroids leads to few lists reliably, and never surely to all.
            if probes > self.recipe.probes or breadth is None:
                return self._search_lists(centroids_of(index), vectors, k, parameters)
            if self._stored:
                return self._search_lists(index.quantizer, vectors, k, parameters)
        elif isinstance(index, faiss.IndexHNSW) and breadth is not None:
            parameters = faiss.SearchParametersHNSW(sel=live, efSearch=breadth)
        else:
            parameters = faiss.SearchParameters(sel=live)
            if isinstance(index, faiss.IndexHNSW):
                index = faiss.downcast_index(index.storage)
        return index.search(vectors, k, params=parameters)

    def _search_lists(
        self,
        centroids: faiss.Index,
        vectors: np.ndarray,
        k: int,
        parameters: faiss.SearchParametersIVF,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search the lists of the nearest `centroids`, which are read before, if they are not."""
        distances = np.empty((len(vectors), k), np.float32)
        rows = np.empty((len(vectors), k), np.int64)
        size = max(1, _PROBED // parameters.nprobe)
        for start in range(0, len(vectors), size):
            part = slice(start, start + size)
            queries = np.ascontiguousarray(vectors[part])
            near, lists = centroids.search(queries, parameters.nprobe)
            self._read(lists)
            arrays = (queries, lists, near, distances[part], rows[part])
            x, *pointers = map(faiss.swig_ptr, arrays)
            self._index.search_preassigned_c(len(queries), x, k, *pointers, False, parameters)
        return distances, rows


def untrained_index(recipe: Recipe, dimension: int) -> faiss.Index:
    """An index of FAISS without vectors, for those of this dimension."""
    # "np": else product codes take minutes to be put in an order that no search reads.
    factory = recipe.factory + ("np" if ",PQ" in recipe.factory else "")
    return faiss.index_factory(_width(recipe, dimension), factory, FAISS_METRICS[recipe.metric])


def _width(recipe: Recipe, dimension: int) -> int:
    """The dimension of the index: FAISS compares scalar codes ten times faster 16 at a time."""
    return -(-dimension // 16) * 16 if "SQ" in recipe.factory else dimension


def _unique_rows(
    found: tuple[np.ndarray, np.ndarray], k: int, assignments: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first `k` places of distances and rows, each row once."""
    distances, rows = found
    if assignments == 1:
        return distances, rows
    by_row = np.argsort(rows, axis=1, kind="stable")
    ordered = np.take_along_axis(rows, by_row, axis=1)
    repeated = np.zeros(rows.shape, bool)
    np.put_along_axis(repeated, by_row[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    unique_first = np.argsort(repeated, axis=1, kind="stable")[:, :k]
    rows = np.where(repeated, -1, rows)
    return (
        np.take_along_axis(distances, unique_first, axis=1),
        np.take_along_axis(rows, unique_first, axis=1),
    )


def _sample(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    if size >= count:
        return np.arange(count)
    return np.sort(rng.choice(count, size, replace=False))
