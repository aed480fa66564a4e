"""FAISS indexes: made by a recipe in a stream of vectors, searched among the living rows."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import write_atomically

FAISS_METRICS = {"l2": faiss.METRIC_L2, "ip": faiss.METRIC_INNER_PRODUCT}
_FACTORY = re.compile(
    r"(?:IVF(?P<lists>[1-9]\d*)(?:_HNSW(?P<quantizer>[1-9]\d*))?,)?(?P<codes>Flat|SQ4|SQ6|SQ8|SQfp16|SQbf16|PQ(?P<parts>[1-9]\d*))"
    r"|HNSW(?P<links>[1-9]\d*)(?:,Flat)?"
)
# What FAISS asks for: with fewer training points a list its k-means warns, more it samples down.
_FEWEST_POINTS, _MOST_POINTS = 39, 256
_PQ_POINTS = 256 * _FEWEST_POINTS
_CHUNK = 32_768
# A list grows by doubling, so one index built at once may hold its codes twice. Above this many
# bytes it is built in shards on disk, whose sizes say how much each list of the whole takes.
_SHARD_BYTES = 1 << 30
MOST, _MOST_LINKS = 1_000_000, 1024  # what FAISS can count, and hold
RECALL_QUERIES, RECALL_AT = 200, 10

SHARDS = "shards"  # what the names of their folders begin with

VectorsOf = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Recipe:
    """How vectors are indexed.

    factory: of FAISS (see `check_recipe`). metric: "l2" (squared Euclidean) or "ip" (inner
    product). probes: lists that a search reads, or, for HNSW, a sixteenth of the candidates it
    keeps. assignments: the nearest lists that a row is stored in; a neighbour just across the
    border of a list is then found too, for as many times the memory and more time a query.
    """

    factory: str = "IVF2000,Flat"
    metric: str = "l2"
    probes: int = 10
    assignments: int = 1


def check_recipe(recipe: Recipe, dimension: int) -> None:
    """UserError where vectors of this dimension cannot be indexed so."""
    if not isinstance(recipe, Recipe):
        raise UserError(f"`recipe`: expected a Recipe, got {recipe!r}")
    match = _FACTORY.fullmatch(recipe.factory) if isinstance(recipe.factory, str) else None
    if not match or (match["parts"] and not match["lists"]):
        raise UserError(
            "index `factory`: expected `Flat`, `SQ8`, `HNSW32`, or `IVF2000,` before `Flat`, "
            f"`SQ8` or `PQ50` (with numbers of your own), got {recipe.factory!r}"
        )
    if recipe.metric not in FAISS_METRICS:
        raise UserError(f"index `metric`: expected one of l2, ip, got {recipe.metric!r}")
    for name, value in (("probes", recipe.probes), ("assignments", recipe.assignments)):
        if type(value) is not int or not 1 <= value <= MOST:
            raise UserError(f"index `{name}`: expected a number 1 to {MOST}, got {value!r}")
    for name in ("links", "quantizer"):
        if int(match[name] or 0) > _MOST_LINKS:
            raise UserError(
                f"index `factory`: expected HNSW1 to HNSW{_MOST_LINKS}, got {match[0]!r}"
            )
    if match["parts"] and dimension % int(match["parts"]):
        parts = int(match["parts"])
        good = min(
            (n for n in range(1, dimension + 1) if dimension % n == 0), key=lambda n: abs(n - parts)
        )
        raise UserError(
            f"index `factory`: PQ{parts} does not divide the {dimension} dimensions; PQ{good} does"
        )


def lists_of(recipe: Recipe) -> int:
    """The lists that the factory names, 0 for one without."""
    match = _FACTORY.fullmatch(recipe.factory)
    return int(match["lists"] or 0) if match else 0


def lists_for(count: int, wanted: int = 2000, *, probes: int = 10) -> int:
    """The number of inverted lists for `count` questions; 0 stands for the exact index `Flat`.

    FAISS asks for 39 training points a list, so a small set gets count // 39 lists, if that is
    fewer than wanted. Where this leaves no more than `probes` lists, a search would read them all
    anyway, and `Flat` does so without training.
    """
    lists = min(wanted, count // _FEWEST_POINTS)
    return lists if lists > probes else 0


def recipe_for(recipe: Recipe, count: int) -> Recipe:
    """The recipe with no more lists, and no finer codes, than `count` rows can train."""
    wanted = lists_of(recipe)
    if not wanted:
        return dataclasses.replace(recipe, assignments=1)
    lists = lists_for(count, wanted, probes=recipe.probes)
    if not lists:
        return dataclasses.replace(recipe, factory="Flat", assignments=1)
    head, codes = recipe.factory.split(",")
    if codes.startswith("PQ") and count < _PQ_POINTS:
        codes = "Flat"
    factory = f"{head.replace(f'IVF{wanted}', f'IVF{lists}')},{codes}"
    return dataclasses.replace(recipe, factory=factory, assignments=min(recipe.assignments, lists))


def build_vectors(
    recipe: Recipe, vectors_of: VectorsOf, count: int, *, shards: pathlib.Path | None = None
) -> tuple[faiss.Index, float]:
    """Index `count` rows as they come, `recipe` taken as it is; the index, and its recall.

    Trains on all rows, or on a fixed sample of 256 a list where there are more. At most the
    training vectors and the index are held at once.

    Args:
      recipe: of `recipe_for`, which knows what can be trained.
      vectors_of: row numbers int64 [n] to float32 [n, d].
      count: 1 or more.
      shards: an existing folder for parts of a large index; one in the system's place for
        temporary files where None.

    Returns:
      The index, and the share of the 10 nearest rows (of other rows, by exact search) that it
      finds for a sample of the rows.
    """
    rng = np.random.default_rng(0)
    sample = _sample(rng, count, _training_points(recipe))
    training = np.ascontiguousarray(vectors_of(sample), np.float32)
    check_recipe(recipe, training.shape[1])
    width = _width(recipe, training.shape[1])
    index = faiss.index_factory(width, recipe.factory, FAISS_METRICS[recipe.metric])
    queries = _sample(rng, count, RECALL_QUERIES)
    exact = Nearest(queries, np.ascontiguousarray(vectors_of(queries), np.float32), recipe.metric)
    if not index.is_trained:
        index.train(_padded(training, width))

    def chunks(start: int, stop: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for first in range(start, stop, _CHUNK):
            rows = np.arange(first, min(first + _CHUNK, stop))
            whole = len(sample) == count
            vectors = training[rows] if whole else vectors_of(rows)
            exact.see(rows, vectors)
            yield rows, np.ascontiguousarray(vectors, np.float32)

    if len(sample) < count:
        training = training[:0].copy()  # a view would keep it all
    code = index.code_size + 8 if isinstance(index, faiss.IndexIVF) else 0
    if count * code * recipe.assignments <= _SHARD_BYTES:
        for rows, vectors in chunks(0, count):
            add_vectors(index, vectors, rows, recipe.assignments)
    else:
        size = max(_CHUNK, _SHARD_BYTES // (4 * code * recipe.assignments))
        with tempfile.TemporaryDirectory(dir=shards, prefix=SHARDS) as folder:
            _add_in_shards(index, recipe, chunks, count, size, pathlib.Path(folder))
    found = search_vectors(index, recipe, exact.queries, RECALL_AT + 1)[1]
    return index, exact.recall(found)


def _add_in_shards(
    index: faiss.IndexIVF,
    recipe: Recipe,
    chunks: Callable[[int, int], Iterator[tuple[np.ndarray, np.ndarray]]],
    count: int,
    size: int,
    folder: pathlib.Path,
) -> None:
    """Add `count` rows by way of indexes of `size` rows on disk."""
    paths, sizes = [], np.zeros(index.nlist, np.int64)
    for start in range(0, count, size):
        shard = faiss.clone_index(index)
        for rows, vectors in chunks(start, min(start + size, count)):
            add_vectors(shard, vectors, rows, recipe.assignments)
        sizes += [shard.invlists.list_size(i) for i in range(index.nlist)]
        paths.append(folder / f"{start}.faiss")
        with write_atomically(paths[-1]) as file:
            faiss.write_index(shard, faiss.PyCallbackIOWriter(file.write))
        del shard
    for i, of_list in enumerate(sizes.tolist()):  # what is resized to nothing keeps its room
        index.invlists.resize(i, of_list)
        index.invlists.resize(i, 0)
    for path in paths:
        index.merge_from(faiss.read_index(str(path)), 0)
        path.unlink()


def add_vectors(
    index: faiss.Index, vectors: np.ndarray, rows: np.ndarray, assignments: int
) -> None:
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


def search_vectors(
    index: faiss.Index,
    recipe: Recipe,
    vectors: np.ndarray,
    k: int,
    alive: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The `k` nearest rows of each vector, nearest first.

    A query for which the probed lists (of HNSW: the candidates kept) hold fewer than `k` rows is
    searched again among all, so places stay empty only where there are not so many.

    Args:
      vectors: float32 [n, d]. k: 1 or more.
      alive: a bit a row, uint8, the least bit first; all rows where None.

    Returns:
      Distances float32 [n, k], squared Euclidean or the inner product times -1, and rows int64
      [n, k]; inf and -1 in places that stay empty.
    """
    vectors = _padded(vectors, index.d)
    selector = None if alive is None else faiss.IDSelectorBitmap(alive)
    wanted = k * recipe.assignments
    if isinstance(index, faiss.IndexIVF):
        some: Any = faiss.SearchParametersIVF(sel=selector, nprobe=min(recipe.probes, index.nlist))
        every: Any = faiss.SearchParametersIVF(sel=selector, nprobe=index.nlist)
    elif isinstance(index, faiss.IndexHNSW):
        some = faiss.SearchParametersHNSW(sel=selector, efSearch=max(16 * recipe.probes, k))
        every = faiss.SearchParameters(sel=selector)
    else:
        some = every = faiss.SearchParameters(sel=selector)
    near, at = _once(index.search(vectors, wanted, params=some), k, recipe.assignments)
    short = np.flatnonzero(at[:, -1] < 0)
    if len(short) and some is not every:
        flat = faiss.downcast_index(index.storage) if isinstance(index, faiss.IndexHNSW) else index
        near[short], at[short] = _once(
            flat.search(vectors[short], wanted, params=every), k, recipe.assignments
        )
    if recipe.metric == "ip":
        near = -near
    return np.where(at < 0, np.float32(np.inf), near), at


def _once(
    found: tuple[np.ndarray, np.ndarray], k: int, assignments: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first `k` places of distances and rows, each row once."""
    near, at = found
    if assignments == 1:
        return near, at
    by_row = np.argsort(at, axis=1, kind="stable")
    ordered = np.take_along_axis(at, by_row, axis=1)
    repeated = np.zeros(at.shape, bool)
    np.put_along_axis(repeated, by_row[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    once_first = np.argsort(repeated, axis=1, kind="stable")[:, :k]
    at = np.where(repeated, -1, at)
    return (
        np.take_along_axis(near, once_first, axis=1),
        np.take_along_axis(at, once_first, axis=1),
    )


def _training_points(recipe: Recipe) -> int:
    """One is enough for what is not trained (it shows the dimension)."""
    lists, codes = lists_of(recipe), recipe.factory.rpartition(",")[2]
    trained = codes.startswith(("SQ", "PQ"))
    return max(lists * _MOST_POINTS, _PQ_POINTS if trained else 1)


def _sample(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    if size >= count:
        return np.arange(count)
    return np.sort(rng.choice(count, size, replace=False))


class Nearest:
    """The true nearest rows of queries, gathered as rows pass by, one more than `RECALL_AT`.

    rows: int64 [n, k], nearest first.
    """

    def __init__(self, itself: np.ndarray, queries: np.ndarray, metric: str) -> None:
        """itself: the row of each query float32 [n, d], -1 for none."""
        self.queries = queries
        self._itself, self._metric = itself, FAISS_METRICS[metric]
        self._near = np.zeros((len(itself), 0), np.float32)
        self.rows = np.zeros((len(itself), 0), np.int64)

    def see(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Take these rows into account."""
        reach = min(RECALL_AT + 1, len(rows))
        near, at = faiss.knn(self.queries, vectors, reach, metric=self._metric)
        sign = 1 if self._metric == faiss.METRIC_L2 else -1
        near = np.concatenate([self._near, sign * near], axis=1)
        at = np.concatenate([self.rows, rows[at]], axis=1)
        order = np.argsort(near, axis=1, kind="stable")[:, : RECALL_AT + 1]
        self._near = np.take_along_axis(near, order, axis=1)
        self.rows = np.take_along_axis(at, order, axis=1)

    def recall(self, found: np.ndarray) -> float:
        """The share of the nearest other rows that are among those found, int64 [n, k]."""
        shares = []
        for row, true, got in zip(self._itself, self.rows, found, strict=True):
            nearest = [at for at in true if at != row][:RECALL_AT]
            if not nearest:
                return 1.0  # one row has no others
            others = {at for at in got if at != row}
            shares.append(sum(at in others for at in nearest) / max(1, len(nearest)))
        return float(np.mean(shares))
