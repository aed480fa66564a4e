"""FAISS indexes: built from a stream of vectors, and searched among the rows that are left."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Self

import faiss
import numpy as np

from qpr_jax.files import StrPath, write_atomically
from qpr_jax.index.base import SHARDS, VectorsOf
from qpr_jax.index.exact import FAISS_METRICS, ExactTopK
from qpr_jax.index.recipe import (
    Recipe,
    check_faiss,
    check_recipe,
    fit_faiss,
    training_points,
)

_CHUNK = 32_768
# A list doubles its memory when it grows, so building in one go may take twice the memory. Above
# this many bytes it is built in shards on disk, whose sizes say how much each list of the whole
# takes.
_SHARD_BYTES = 1 << 30
RECALL_QUERIES, RECALL_AT = 200, 10

_Chunks = Callable[[int, int], Iterator[tuple[np.ndarray, np.ndarray]]]


class FaissIndex:
    """A `VectorIndex` of FAISS. Rows are numbered from 0 without gaps."""

    def __init__(self, index: faiss.Index, recipe: Recipe, recall: float, dimension: int) -> None:
        self.recipe, self.recall, self.dimension = recipe, recall, dimension
        self.faiss = index
        self._rows = index.ntotal // recipe.assignments
        self._removed = np.zeros(self._rows, bool)
        self._removed_count = 0
        self._live_bits: np.ndarray | None = None  # for FAISS; None while no row is removed

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
        width = _width(recipe, dimension)
        index = faiss.index_factory(width, recipe.factory, FAISS_METRICS[recipe.metric])
        queries = _sample(rng, count, RECALL_QUERIES)
        query_vectors = np.ascontiguousarray(vectors_of(queries), np.float32)
        exact = ExactTopK(query_vectors, RECALL_AT + 1, recipe.metric)
        if not index.is_trained:
            index.train(_padded(training, width))
        whole = len(sample) == count

        def chunks(start: int, stop: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for first in range(start, stop, _CHUNK):
                rows = np.arange(first, min(first + _CHUNK, stop))
                vectors = training[rows] if whole else vectors_of(rows)
                exact.add(rows, vectors)
                yield rows, np.ascontiguousarray(vectors, np.float32)

        if not whole:
            training = training[:0].copy()  # a view would keep it all
        code = index.code_size + 8 if isinstance(index, faiss.IndexIVF) else 0
        if count * code * recipe.assignments <= _SHARD_BYTES:
            for rows, vectors in chunks(0, count):
                _add(index, vectors, rows, recipe.assignments)
        else:
            size = max(_CHUNK, _SHARD_BYTES // (4 * code * recipe.assignments))
            with tempfile.TemporaryDirectory(dir=folder, prefix=SHARDS) as parts:
                _add_in_shards(index, recipe, chunks, count, size, pathlib.Path(parts))
        built = cls(index, recipe, 1.0, dimension)
        found = built.search(exact.queries, RECALL_AT + 1)[1]
        built.recall = _recall(queries, exact.rows, found)
        return built

    @classmethod
    def read(cls, path: StrPath, recipe: Recipe, recall: float, dimension: int) -> Self:
        """The index of a file that `save` wrote; RuntimeError where FAISS cannot read it."""
        return cls(faiss.read_index(str(path)), recipe, recall, dimension)

    def save(self, path: StrPath) -> None:
        """Write it as FAISS does."""
        with write_atomically(path) as file:
            faiss.write_index(self.faiss, faiss.PyCallbackIOWriter(file.write))

    def __len__(self) -> int:
        return self._rows - self._removed_count

    def add(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Store vectors float32 [n, d] in the nearest lists, as the next rows."""
        _add(self.faiss, np.ascontiguousarray(vectors, np.float32), rows, self.recipe.assignments)
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

        A query for which the probed lists (of HNSW: the candidates kept) hold fewer than `k` rows
        is searched again among all, so results are padded only if fewer than `k` rows exist.

        Returns:
          Distances float32 [n, k], squared Euclidean or the inner product times -1, and rows int64
          [n, k]; inf and -1 in places that stay empty.
        """
        index, assignments = self.faiss, self.recipe.assignments
        vectors = _padded(vectors, index.d)
        selector = None if self._live_bits is None else faiss.IDSelectorBitmap(self._live_bits)
        probed, every = self._parameters(k, selector)
        distances, rows = _unique_rows(
            index.search(vectors, k * assignments, params=probed), k, assignments
        )
        short = np.flatnonzero(rows[:, -1] < 0)
        if len(short) and probed is not every:
            hnsw = isinstance(index, faiss.IndexHNSW)
            flat = faiss.downcast_index(index.storage) if hnsw else index
            distances[short], rows[short] = _unique_rows(
                flat.search(vectors[short], k * assignments, params=every), k, assignments
            )
        if self.recipe.metric == "ip":
            distances = -distances
        return np.where(rows < 0, np.float32(np.inf), distances), rows

    def _parameters(self, k: int, selector: Any) -> tuple[Any, Any]:
        """FAISS search parameters: for the normal search, and for the exhaustive one."""
        index, probes = self.faiss, self.recipe.probes
        if isinstance(index, faiss.IndexIVF):
            probed = faiss.SearchParametersIVF(sel=selector, nprobe=min(probes, index.nlist))
            return probed, faiss.SearchParametersIVF(sel=selector, nprobe=index.nlist)
        every = faiss.SearchParameters(sel=selector)
        if isinstance(index, faiss.IndexHNSW):
            return faiss.SearchParametersHNSW(sel=selector, efSearch=max(16 * probes, k)), every
        return every, every


def _add_in_shards(
    index: faiss.IndexIVF,
    recipe: Recipe,
    chunks: _Chunks,
    count: int,
    size: int,
    folder: pathlib.Path,
) -> None:
    """Add `count` rows by way of indexes of `size` rows on disk."""
    paths, sizes = [], np.zeros(index.nlist, np.int64)
    for start in range(0, count, size):
        shard = faiss.clone_index(index)
        for rows, vectors in chunks(start, min(start + size, count)):
            _add(shard, vectors, rows, recipe.assignments)
        sizes += [shard.invlists.list_size(i) for i in range(index.nlist)]
        paths.append(folder / f"{start}.faiss")
        with write_atomically(paths[-1]) as file:
            faiss.write_index(shard, faiss.PyCallbackIOWriter(file.write))
        del shard
    for i, list_size in enumerate(sizes.tolist()):  # a list that is resized to 0 keeps its room
        index.invlists.resize(i, list_size)
        index.invlists.resize(i, 0)
    for path in paths:
        index.merge_from(faiss.read_index(str(path)), 0)
        path.unlink()


def _add(index: faiss.Index, vectors: np.ndarray, rows: np.ndarray, assignments: int) -> None:
    """Store vectors float32 [n, d] as rows int64 [n], those after the last, in the nearest lists.

    An index without lists numbers its rows itself, in order.
    """
    vectors = _padded(vectors, index.d)
    if not isinstance(index, faiss.IndexIVF):
        index.add(vectors)
        return
    _, nearest = index.quantizer.search(vectors, assignments)
    for lists in np.ascontiguousarray(nearest.T):
        index.add_core(len(vectors), *map(faiss.swig_ptr, (vectors, rows, lists)))


def _width(recipe: Recipe, dimension: int) -> int:
    """The dimension of the index: FAISS compares scalar codes ten times faster 16 at a time."""
    return -(-dimension // 16) * 16 if "SQ" in recipe.factory else dimension


def _padded(vectors: np.ndarray, width: int) -> np.ndarray:
    """The vectors with zeros at the end, which change no distance and no inner product."""
    missing = width - vectors.shape[1]
    return np.pad(vectors, ((0, 0), (0, missing))) if missing else vectors


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


def _recall(queries: np.ndarray, exact: np.ndarray, found: np.ndarray) -> float:
    """The share of the nearest other rows int64 [n, k] that are among those found int64 [n, k].

    queries: int64 [n], the row of each query.
    """
    shares = []
    for query, nearest, rows in zip(queries, exact.tolist(), found.tolist(), strict=True):
        others = [row for row in nearest if row not in (query, -1)][:RECALL_AT]
        if not others:
            return 1.0  # one row has no others
        shares.append(sum(row in rows for row in others) / len(others))
    return float(np.mean(shares))
