"""Vectors by row: FAISS proposes candidates, the vectors themselves decide.

The vectors of a build are an array that may be a memory map, and never change; FAISS keeps short
codes of them in memory. Added vectors lie in a block behind them and are compared with every query.
"""

from __future__ import annotations

import logging
import math
import os
import pathlib
from typing import NamedTuple, Self

import faiss
import numpy as np

from qpr_jax.errors import UserError, counted
from qpr_jax.index.protocol import (
    AUTO,
    FLAT_BELOW,
    IndexConfig,
    check_index_config,
    damaged,
    padded_dimension,
    parse_factory,
)
from qpr_jax.running import progress

# OpenMP waits for threads that a forked child lacks.
os.register_at_fork(after_in_child=lambda: faiss.omp_set_num_threads(1))
log = logging.getLogger(__name__)

RECALL_AT, RECALL_QUERIES = 10, 200
COMPARED = FLAT_BELOW  # so few rows that a search compares all, whatever codes there are
_METRICS = {"l2": faiss.METRIC_L2, "ip": faiss.METRIC_INNER_PRODUCT}
_FEWEST, _WIDER, _MORE = 80, 2, 40  # candidates of a search for k rows: 2 k + 40, at least 80
_CHUNK = 65_536  # vectors that are compared, or added to an index, at once
_LARGEST = {"float32": 1e15, "float16": 65504.0}  # of a number; squares and sums stay finite
_PART = 4_000_000  # numbers of candidates in memory at once
_MIN_POINTS = 39  # training vectors a centroid; FAISS warns below


class Live(NamedTuple):
    """The rows that a search may find."""

    rows: int  # number of all rows, the added ones included
    present: int  # number of those to be found
    mask: np.ndarray | None = None  # bool [rows], whether a row can be found; None: all can
    bits: np.ndarray | None = None  # the mask, packed for FAISS

    def changed(self, removed: np.ndarray, added: int = 0) -> Live:
        """Return the rows without `removed`, int64 [m], and with `added` new ones behind them."""
        rows = self.rows + added
        if self.mask is None and not len(removed):
            return Live(rows, rows)
        mask = np.ones(rows, bool)
        if self.mask is not None:
            mask[: self.rows] = self.mask
        mask[removed] = False
        return Live(rows, int(mask.sum()), mask, np.packbits(mask, bitorder="little"))


class Vectors:
    """Searchable vectors. One thread may add while others search."""

    def __init__(
        self,
        index_config: IndexConfig,  # as asked for
        factory: str,  # of the codes, as FAISS names it; `Flat` has none
        built: np.ndarray,  # float32 or float16 [n, d], the vectors of the build
        codes: faiss.Index | None,
    ) -> None:
        self.index_config, self.factory, self.built, self.codes = (
            index_config,
            factory,
            built,
            codes,
        )
        self._added = np.zeros((0, built.shape[1]), np.float32)
        self._rows = len(built)

    @classmethod
    def build(cls, index_config: IndexConfig, vectors: np.ndarray) -> Self:
        """Index vectors [n, d], which are kept, not copied; UserError for a wrong `IndexConfig`."""
        count, dimension = vectors.shape
        check_index_config(index_config, dimension)
        factory = fit_index_config(index_config, count, dimension)
        if factory == "Flat" or not count:
            return cls(index_config, "Flat", vectors, None)
        # "np": without it FAISS spends minutes on an order of product codes that no search reads.
        suffix = "np" if ",PQ" in factory and not factory.endswith("fs") else ""
        width = padded_dimension(factory, dimension)
        codes = faiss.index_factory(width, factory + suffix, _METRICS[index_config.metric])
        if not codes.is_trained:
            most = max(65_536, 40 * int(parse_factory(factory)["lists"] or 0))
            sample = np.random.default_rng(0).permutation(count)[:most]
            log.info("training %s on %s", factory, counted(len(sample), "vector"))
            with progress("training the index"):
                codes.train(_padded(vectors[np.sort(sample)], width))
        with progress("indexed", count) as show:
            for start in range(0, count, _CHUNK):
                codes.add(_padded(vectors[start : start + _CHUNK], width))
                show(min(start + _CHUNK, count), "")
        return cls(index_config, factory, vectors, codes)

    def __len__(self) -> int:
        """Return the number of rows, removed ones included."""
        return self._rows

    @property
    def added(self) -> int:
        """Number of rows that were added after the build."""
        return self._rows - len(self.built)

    def add(self, vectors: np.ndarray) -> None:
        """Append vectors float32 [m, d] as the next rows."""
        used, needed = self.added, self.added + len(vectors)
        if needed > len(self._added):  # a search may read the old block
            size = max(needed, 2 * len(self._added), 1024)
            block = np.empty((size, self.built.shape[1]), np.float32)
            block[:used] = self._added[:used]
            self._added = block
        self._added[used:needed] = vectors
        self._rows += len(vectors)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of rows int64 [m] as float32 [m, d]."""
        count = len(self.built)
        found = np.empty((len(rows), self.built.shape[1]), np.float32)
        old = rows < count
        found[old] = self.built[rows[old]]
        found[~old] = self._added[rows[~old] - count]
        return found

    def search(
        self, queries: np.ndarray, k: int, live: Live | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the `k` nearest rows of each query float32 [n, d], nearest first.

        live: the rows that may be found; None: all.

        Returns:
          Distances float32 [n, k] (squared Euclidean, or the inner product times -1) and rows
          int64 [n, k]; inf and -1 beyond the last row.
        """
        queries = np.ascontiguousarray(queries, np.float32)
        live = Live(self._rows, self._rows) if live is None else live
        metric, count = self.index_config.metric, len(self.built)
        if self.codes is None or live.present <= COMPARED:
            found = self._compare(queries, self.built, k, live, 0)
        else:
            rows = self._candidates(self.codes, queries, k, live)
            found = nearest(k, (distances_to(queries, self.built, rows, metric), rows))
        if live.rows > count:
            block = self._added[: live.rows - count]
            found = nearest(k, found, self._compare(queries, block, k, live, count))
        return found

    def recall(self) -> float:
        """Measure the share of the 10 nearest that a search for a row of the build finds.

        A row counts that is as near as the tenth. 200 random rows are the queries.
        """
        count = len(self.built)
        if self.codes is None or count <= COMPARED:
            return 1.0
        some = np.sort(np.random.default_rng(0).choice(count, RECALL_QUERIES, replace=False))
        queries = self.built[some].astype(np.float32)
        exact, _ = exact_top_k(queries, self.built, RECALL_AT + 1, self.index_config.metric)
        found, _ = self.search(queries, RECALL_AT + 1)
        return float((found <= exact[:, -1:]).mean())

    def _compare(
        self, queries: np.ndarray, vectors: np.ndarray, k: int, live: Live, first: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compare queries with all vectors that can be found; their rows begin at `first`."""
        rows = np.arange(first, first + len(vectors) + 1)
        if live.mask is not None and not (mask := live.mask[first : rows[-1]]).all():
            rows = np.append(first + np.flatnonzero(mask), -1)
            vectors = vectors[rows[:-1] - first]
        rows[-1] = -1  # where exact_top_k has none
        distances, found = exact_top_k(queries, vectors, k, self.index_config.metric)
        return distances, rows[found]

    def _candidates(
        self, codes: faiss.Index, queries: np.ndarray, k: int, live: Live
    ) -> np.ndarray:
        """Return rows of the build that FAISS proposes, int64 [n, c], -1 for none.

        If fewer than `k` come out, the search is repeated with twice the probes, up to all.
        """
        count = len(self.built)
        present = count if live.mask is None else live.present - int(live.mask[count:].sum())
        size, enough = min(present, max(_FEWEST, _WIDER * k + _MORE)), min(k, present)
        keep = None if live.bits is None else faiss.IDSelectorBitmap(live.bits)
        queries, in_lists = _padded(queries, codes.d), isinstance(codes, faiss.IndexIVF)
        # After removals a new index would have fewer lists, and so read a larger share of them.
        scale, limit = count / max(1, present), count
        if in_lists:
            scale, limit = scale**0.5, codes.nlist
        breadth = min(math.ceil(self.index_config.nprobe * scale), limit)
        rows, short = np.full((len(queries), size), -1), np.arange(len(queries))
        while len(short):
            if in_lists:
                effort = faiss.SearchParametersIVF(sel=keep, nprobe=breadth)
            else:
                effort = faiss.SearchParametersHNSW(sel=keep, efSearch=max(2 * breadth, size))
            rows[short] = codes.search(queries[short], size, params=effort)[1]
            if rows.max() >= count:  # FAISS would read the vectors of these
                raise UserError("the codes name rows without vectors", remedy="index again")
            short = np.flatnonzero(rows[:, enough - 1] < 0) if breadth < limit else short[:0]
            breadth = min(2 * breadth, limit)
        return rows


def check_vectors(vectors: np.ndarray, shape: tuple[int, int], kind: str, what: str) -> None:
    """Raise a UserError, which names `what` they are, for vectors that a `kind` cannot hold."""
    largest = _LARGEST[kind]
    if vectors.shape != shape or not (np.abs(vectors) <= largest).all():  # nor is NaN
        expected = f"{list(shape)} numbers, at most {largest:g} either way"
        raise UserError(f"{what}: expected {expected}; got {list(vectors.shape)}, or other numbers")


def read_codes(path: pathlib.Path, count: int, width: int) -> faiss.Index:
    """Read an index of FAISS of `count` vectors; UserError for anything else."""
    try:
        codes = faiss.read_index(str(path))
    except (RuntimeError, MemoryError, OverflowError, ValueError) as error:
        raise damaged(path, str(error).splitlines()[0]) from None
    is_supported = isinstance(codes, faiss.IndexIVF | faiss.IndexHNSW)
    if not is_supported or codes.ntotal != count or codes.d != width or not codes.is_trained:
        raise damaged(path, f"expected codes of {count:,} vectors, got others")
    return codes


def _padded(vectors: np.ndarray, width: int) -> np.ndarray:
    """Return vectors as contiguous float32 [n, width], padded with zeros."""
    vectors = np.ascontiguousarray(vectors, np.float32)
    missing = width - vectors.shape[1]
    return np.pad(vectors, ((0, 0), (0, missing))) if missing else vectors


def exact_top_k(
    queries: np.ndarray, vectors: np.ndarray, k: int, metric: str = "l2"
) -> tuple[np.ndarray, np.ndarray]:
    """Find the `k` nearest vectors of each query, nearest first.

    Args:
      queries: float32 [n, d].
      vectors: float32 or float16 [m, d], in memory or memory-mapped.
      k: 1 or more.
      metric: "l2" (squared Euclidean distance) or "ip" (the inner product times -1).

    Returns:
      Distances float32 [n, k] and rows of `vectors` int64 [n, k]; inf and -1 beyond m.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    found = (np.full((len(queries), 0), np.inf, np.float32), np.zeros((len(queries), 0), np.int64))
    # FAISS compares batches by products, which lose precision for vectors far from the origin.
    products = len(queries) >= faiss.cvar.distance_compute_blas_threshold
    center = vectors[:_CHUNK].mean(axis=0, dtype=np.float32) if products and len(vectors) else 0
    for start in range(0, len(vectors) if len(queries) else 0, _CHUNK):
        chunk = np.ascontiguousarray(vectors[start : start + _CHUNK], np.float32)
        near = queries
        if products and metric == "l2":
            chunk, near = chunk - center, queries - center
        distances, rows = faiss.knn(near, chunk, min(k, len(chunk)), metric=_METRICS[metric])
        found = nearest(k, found, (distances if metric == "l2" else -distances, rows + start))
    distances = distances_to(queries, vectors, found[1], metric)
    return nearest(k, (distances, found[1]))


def distances_to(
    queries: np.ndarray, vectors: np.ndarray, rows: np.ndarray, metric: str = "l2"
) -> np.ndarray:
    """Compute the distances float32 [n, c] of queries [n, d] to rows int64 [n, c] of vectors.

    Squared distances are computed by subtraction, so that small ones are exact. Row -1 is at inf.
    """
    distances = np.full(rows.shape, np.inf, np.float32)
    if not len(vectors) or not rows.size:
        return distances
    # FAISS starts its threads even for one query, which waits long for them on a busy machine.
    if len(queries) > 1 and vectors.dtype == np.float32 and vectors.flags.c_contiguous:
        queries, rows = np.ascontiguousarray(queries, np.float32), np.ascontiguousarray(rows)
        pointers = map(faiss.swig_ptr, (distances, queries, vectors, rows))
        arguments = [*pointers, queries.shape[1], *rows.shape]
        if metric == "l2":
            faiss.fvec_L2sqr_by_idx(*arguments)
            return distances
        faiss.fvec_inner_products_by_idx(*arguments)
        return -distances
    size = max(1, _PART // (rows.shape[1] * queries.shape[1]))
    for start in range(0, len(rows), size):
        part, origins = rows[start : start + size], queries[start : start + size]
        candidates = vectors[np.maximum(part, 0)].astype(np.float32)
        if metric == "l2":
            candidates -= origins[:, None]
            distances[start : start + size] = np.einsum("ncd,ncd->nc", candidates, candidates)
        else:
            distances[start : start + size] = -np.einsum("ncd,nd->nc", candidates, origins)
    distances[rows < 0] = np.inf
    return distances


def nearest(k: int, *found: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the `k` nearest of candidates: distances [n, k] and rows [n, k], padded with inf, -1.

    found: distances [n, c] and rows [n, c]; of equal distances the first are kept.
    """
    distances, rows = found[0]
    if len(found) > 1:
        distances = np.concatenate([part[0] for part in found], axis=1)
        rows = np.concatenate([part[1] for part in found], axis=1)
    if (missing := k - distances.shape[1]) > 0:
        distances = np.pad(distances, ((0, 0), (0, missing)), constant_values=np.inf)
        rows = np.pad(rows, ((0, 0), (0, missing)), constant_values=-1)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, 1), np.take_along_axis(rows, order, 1)


def fit_index_config(index_config: IndexConfig, count: int, dimension: int) -> str:
    """Return the factory of FAISS for `count` vectors: `Flat`, or 39 vectors a list at least."""
    factory = index_config.factory
    if factory == AUTO:
        if count < FLAT_BELOW:
            return "Flat"
        factory = f"IVF{int(2.5 * count**0.5)},PQ{(dimension + 1) // 2}x4fs"
    parts = parse_factory(factory)
    if not parts["lists"]:
        return factory
    lists, codes = min(int(parts["lists"]), count // _MIN_POINTS), parts["codes"]
    if codes.startswith("PQ") and count < (16 if parts["fast"] else 256) * _MIN_POINTS:
        codes = "Flat"
    head = factory.partition(",")[0].replace(f"IVF{parts['lists']}", f"IVF{lists}")
    return f"{head},{codes}" if lists > 1 else "Flat"
