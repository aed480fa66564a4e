"""How vectors get into the lists of an index of FAISS: each into its nearest ones."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator

import faiss
import numpy as np

from qpr_jax.files import write_atomically
from qpr_jax.index.recipe import Recipe

_CODE_POINTS = 100_000  # vectors that scalar codes are trained on; FAISS takes no more
_Chunks = Callable[[int, int], Iterator[tuple[np.ndarray, np.ndarray]]]


def add_rows(index: faiss.Index, vectors: np.ndarray, rows: np.ndarray, assignments: int) -> None:
    """Store vectors float32 [n, d] in the nearest lists, as rows int64 [n], the next in order."""
    vectors = padded(vectors, index.d)
    if not isinstance(index, faiss.IndexIVF):
        index.add(vectors)
        return
    for lists in np.ascontiguousarray(nearest_lists(index, vectors, assignments).T):
        index.add_core(len(vectors), *map(faiss.swig_ptr, (vectors, rows, lists)))


def add_in_shards(
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
            add_rows(shard, vectors, rows, recipe.assignments)
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


def nearest_lists(index: faiss.IndexIVF, vectors: np.ndarray, count: int) -> np.ndarray:
    """The `count` nearest lists of each vector, int64 [n, count]."""
    lists: np.ndarray = index.quantizer.search(vectors, count)[1]
    if len(lost := np.flatnonzero(lists[:, -1] < 0)):  # a graph over centroids may be in pieces
        lists[lost] = centroids_of(index).search(vectors[lost], count)[1]
    return lists


def centroids_of(index: faiss.IndexIVF) -> faiss.Index:
    """The centroids of the lists, searched one by one."""
    quantizer = faiss.downcast_index(index.quantizer)
    if isinstance(quantizer, faiss.IndexHNSW):
        return faiss.downcast_index(quantizer.storage)
    return quantizer


def train_codes(
    index: faiss.IndexIVFScalarQuantizer, vectors: np.ndarray, assignments: int
) -> None:
    """Train the codes on what is left of a vector after the centroid of each of its lists.

    FAISS trains on the nearest list alone. What is left in the others is longer, and cut off at
    the ends of what the codes were trained on it comes to lie near a centroid that it is far from.
    """
    size = min(len(vectors), _CODE_POINTS // assignments)
    vectors = vectors[np.linspace(0, len(vectors) - 1, size).astype(np.int64)]
    lists = nearest_lists(index, vectors, assignments)
    left = vectors[:, None] - index.quantizer.reconstruct_n(0, index.nlist)[lists]
    left, lists = (np.ascontiguousarray(x.reshape(lists.size, -1)) for x in (left, lists))
    index.train_encoder(lists.size, faiss.swig_ptr(left), faiss.swig_ptr(lists))


def padded(vectors: np.ndarray, width: int) -> np.ndarray:
    """The vectors with zeros at the end, which change no distance and no inner product."""
    missing = width - vectors.shape[1]
    return np.pad(vectors, ((0, 0), (0, missing))) if missing else vectors
