"""What a FAISS index takes: rates from small pieces of it, sizes by formula."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import faiss
import numpy as np

from qpr_jax.index.faiss_index import RECALL_QUERIES, SHARD_BYTES, untrained_index
from qpr_jax.index.recipe import Recipe, count_lists, training_points

_POINTS = 2048  # vectors that are measured
_SECONDS = 0.1  # of measuring a piece
_CODE_POINTS = 256 * 256  # vectors that FAISS trains product codes on, at most
_GRAPH_POINTS = 2000


class FaissCosts(NamedTuple):
    """What building an index takes.

    Attributes:
      seconds: without encoding.
      memory: bytes at the most, while it is built.
      held: bytes of the index itself, as it lies on disk, too.
      parts: bytes of parts that are on disk while it is built, and gone before it is written.
      encoded: how many questions are encoded for it, some of them twice.
    """

    seconds: float
    memory: int
    held: int
    parts: int
    encoded: int


class FaissSizes(NamedTuple):
    """The sizes of an index; as of `FaissCosts`."""

    memory: int
    held: int
    parts: int
    encoded: int


def faiss_sizes(recipe: Recipe, count: int, dimension: int) -> FaissSizes:
    """The sizes of an index of `count` vectors, by a recipe of `fit_recipe`."""
    index, lists = untrained_index(recipe, dimension), count_lists(recipe.factory)
    train = min(count, training_points(recipe.factory))
    whole, width = train == count, index.d
    if lists:
        entries = recipe.assignments * count * (index.code_size + 8)
        codes = 4 * width << index.pq.nbits if isinstance(index, faiss.IndexIVFPQ) else 0
        held = entries + 4 * width * lists + codes
    elif isinstance(index, faiss.IndexHNSW):
        links = 4 * (2 * index.hnsw.nb_neighbors(1)) + 4 * index.hnsw.nb_neighbors(1) // 8 + 20
        held = entries = count * (4 * width + links)
    else:
        held = entries = count * index.code_size
    training = 4 * dimension * train + (4 * width * train if width != dimension else 0)
    shards = lists and entries > SHARD_BYTES
    # Lists, and other arrays that grow, have room to spare, up to as much again.
    building = held + SHARD_BYTES // 2 if shards else 1.4 * held
    kept = 4 * dimension * count if whole else 0  # the vectors, until all are added
    memory = max(training, kept + building)
    encoded = 1 + min(count, RECALL_QUERIES) + count + (0 if whole else train)
    return FaissSizes(round(memory), round(held), round(entries) if shards else 0, encoded)


def measure_faiss(recipe: Recipe, count: int, dimension: int) -> FaissCosts:
    """What building an index of `count` vectors takes, by a recipe of `fit_recipe`.

    The pieces are timed on random vectors, whose values change hardly anything.
    """
    sizes = faiss_sizes(recipe, count, dimension)
    index, lists = untrained_index(recipe, dimension), count_lists(recipe.factory)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((_POINTS, index.d), np.float32)
    train = min(count, training_points(recipe.factory))
    seconds = RECALL_QUERIES * count * compare_seconds(index.d)  # the exact search, for the recall
    if lists:
        centroids = rng.standard_normal((lists, index.d), np.float32)
        flat = _flat(centroids, index.d)
        assign = _per_vector(lambda x: flat.search(x, 1), vectors)
        seconds += index.cp.niter * min(train, 256 * lists) * assign
        if recipe.assignments > 1:
            several = recipe.assignments
            assign = _per_vector(lambda x: flat.search(x, several), vectors)
        seconds += count * assign
        if "_HNSW" in recipe.factory:
            seconds += lists * _graph_seconds(rng, index.d, 32, lists)
    elif isinstance(index, faiss.IndexHNSW):
        links = index.hnsw.nb_neighbors(1)
        seconds += count * _graph_seconds(rng, index.d, links, count)
    seconds += _code_seconds(index, vectors, train, recipe.assignments * count)
    return FaissCosts(seconds, *sizes)


def compare_seconds(dimension: int) -> float:
    """Seconds to compare one vector with another, in an exact search for many queries."""
    vectors = np.random.default_rng(0).standard_normal((_POINTS, dimension), np.float32)
    return _per_vector(lambda x: _flat(vectors, dimension).search(x, 1), vectors) / _POINTS


def _flat(vectors: np.ndarray, dimension: int) -> faiss.Index:
    flat = faiss.IndexFlatL2(dimension)
    flat.add(vectors)
    return flat


def _per_vector(call: Callable[[np.ndarray], object], vectors: np.ndarray) -> float:
    """Seconds of `call` for one of the vectors; the median of a few calls."""
    call(vectors[:64])  # starts the threads
    times: list[float] = []
    while len(times) < 2 or (sum(times) < _SECONDS and len(times) < 20):
        start = time.perf_counter()
        call(vectors)
        times.append((time.perf_counter() - start) / len(vectors))
    return float(np.median(times))


def _graph_seconds(rng: np.random.Generator, dimension: int, links: int, count: int) -> float:
    """Seconds to add one vector to a graph of `count`: with the logarithm of the vectors in it."""
    vectors = rng.standard_normal((min(count, _GRAPH_POINTS), dimension), np.float32)
    graph, start = faiss.IndexHNSWFlat(dimension, links), time.perf_counter()
    graph.add(vectors)
    seconds = (time.perf_counter() - start) / len(vectors)
    return seconds * math.log(max(count, 2)) / math.log(max(len(vectors), 2))


def _code_seconds(index: faiss.Index, vectors: np.ndarray, train: int, entries: int) -> float:
    """Seconds to train the codes of an index, and to make those of this number of entries."""
    if isinstance(index, faiss.IndexIVFPQ):
        codes = faiss.ProductQuantizer(index.d, index.pq.M, index.pq.nbits)
        iterations, codes.cp.niter = codes.cp.niter, 1
        codes.cp.min_points_per_centroid = 1
        some, start = vectors[:1024], time.perf_counter()
        codes.train(some)
        point = (time.perf_counter() - start) / len(some)
        encode = _per_vector(codes.compute_codes, some)
        return iterations * min(train, _CODE_POINTS) * point + entries * encode
    if isinstance(index, faiss.IndexIVFScalarQuantizer | faiss.IndexScalarQuantizer):
        scalar = faiss.ScalarQuantizer(index.d, index.sq.qtype)
        scalar.train(vectors)
        return entries * _per_vector(scalar.compute_codes, vectors)
    return entries * _per_vector(np.copy, vectors)
