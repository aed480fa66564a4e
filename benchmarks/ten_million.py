"""An index of ten million questions on one machine: built in a stream, saved, loaded, searched.

    python -m benchmarks.ten_million --run runs/quora_sdml --folder /tmp/ten_million

The vectors lie as real ones do: each is that of a question of the run, moved as one of 20,000
others differs from its nearest neighbour. Building, and loading and searching, are processes of
their own, whose peak memory is their own, with what they map of files. Times of searches are of
one query at a time, 50th and 99th percentile: of the first 100 after the index was opened, then of
all when all lists are read; recall@10 is against exact search among all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.measuring import peak_gib, positive, program, run
from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.exact import ExactTopK, exact_top_k
from qpr_jax.index.faiss_index import RECALL_AT
from qpr_jax.index.folder import new_build, read_index, write_index, write_store
from qpr_jax.index.question_index import QuestionIndex, build_vectors
from qpr_jax.index.recipe import Recipe

QUERIES = 1000
FIRST = 100  # queries of which the first searches are timed
CHUNK = 32_768


class Generated:
    """Vectors of any number of questions, made from `vectors` float32 [Q, d]."""

    def __init__(self, vectors: np.ndarray) -> None:
        self._vectors = vectors
        some = vectors[np.random.default_rng(0).permutation(len(vectors))[:20_000]]
        _, nearest = exact_top_k(some, vectors, 2)
        self._moves = vectors[nearest[:, 1]] - some

    def __call__(self, questions: Sequence[str] | np.ndarray) -> np.ndarray:
        """The vectors of questions "0", "1", ..., or of their numbers."""
        number = np.array(questions, np.int64)
        copy, question = np.divmod(number, len(self._vectors))
        # Each copy of a question is moved differently.
        move = (question * 7919 + copy * 104_729) % len(self._moves)
        return self._vectors[question] + self._moves[move]


def vectors_of(folder: str) -> Generated:
    return Generated(np.load(pathlib.Path(folder, "vectors.npy"), mmap_mode="r"))


def build(folder: str, count: int, recipe: dict[str, Any]) -> dict[str, Any]:
    encode, where, name = vectors_of(folder), pathlib.Path(folder, "index"), new_build()
    where.mkdir()
    start, processor = time.perf_counter(), time.process_time()
    store = write_store(where, (StoredQuestion(i, str(i)) for i in range(count)), name, count)
    vectors = build_vectors(encode, store, requested := Recipe(**recipe), folder=where)
    built = time.perf_counter()
    write_index(where, QuestionIndex(vectors, store, requested, "generated"), name, "export")
    return {
        "build_s": built - start,
        "save_s": time.perf_counter() - built,
        "build_and_save_cpu_s": time.process_time() - processor,
        "recall@10": vectors.recall,
        "gib_on_disk": sum(path.stat().st_size for path in where.iterdir()) / 2**30,
        "peak_gib": peak_gib(),
    }


def queries_of(folder: str, count: int) -> np.ndarray:
    """Vectors between those of indexed questions, float32 [QUERIES, d]."""
    encode = vectors_of(folder)
    numbers = np.random.default_rng(2).integers(count, size=QUERIES)
    first, second = (encode([str(number + i) for number in numbers]) for i in range(2))
    return first + np.float32(0.1) * second


def exact(folder: str, count: int) -> dict[str, Any]:
    """Write the nearest questions of all, by exact search."""
    encode, queries = vectors_of(folder), queries_of(folder, count)
    nearest = ExactTopK(queries, RECALL_AT)
    for start in range(0, count, CHUNK):
        rows = np.arange(start, min(start + CHUNK, count))
        nearest.add(rows, encode(rows))
    np.save(pathlib.Path(folder, "nearest.npy"), nearest.rows)
    return {}


def timed_searches(
    index: QuestionIndex, queries: np.ndarray
) -> tuple[list[float], list[np.ndarray]]:
    """Of each query alone: milliseconds, and the rows that are found."""
    times, found = [], []
    for query in queries:
        begin = time.perf_counter()
        found.append(index.vectors.search(query[None], RECALL_AT)[1][0])
        times.append(1e3 * (time.perf_counter() - begin))
    return times, found


def search(folder: str, count: int, probes: list[int]) -> dict[str, Any]:
    queries, nearest = queries_of(folder, count), np.load(pathlib.Path(folder, "nearest.npy"))
    start, processor = time.perf_counter(), time.process_time()
    index, _ = read_index(pathlib.Path(folder, "index"))
    report: dict[str, Any] = {
        "load_s": time.perf_counter() - start,
        "load_cpu_s": time.process_time() - processor,
    }
    # A search of an index that was just opened reads its lists first, and one more.
    times, _ = timed_searches(index, queries[:FIRST])
    report["first_ms"] = [float(t) for t in np.percentile(times, [50, 99])]
    start = time.perf_counter()
    _ = index.vectors.whole
    report["read_all_s"] = time.perf_counter() - start
    for probe_count in probes:
        index.vectors.recipe = dataclasses.replace(index.recipe, probes=probe_count)
        processor = time.process_time()
        times, found = timed_searches(index, queries)
        shares = [
            np.isin(true[:RECALL_AT], got).mean() for true, got in zip(nearest, found, strict=True)
        ]
        report[f"{probe_count} probes"] = {
            "ms": [float(t) for t in np.percentile(times, [50, 99])],
            "cpu_ms": 1e3 * (time.process_time() - processor) / len(queries),
            "recall@10": float(np.mean(shares)),
        }
    report["peak_gib"] = peak_gib()
    return report


def measure(what: str, **arguments: Any) -> dict[str, Any]:
    steps = {"encode": encode_run, "build": build, "exact": exact, "search": search}
    return steps[what](**arguments)


def encode_run(folder: str, source: str) -> dict[str, Any]:
    from qpr_jax.retriever import Retriever

    retriever = Retriever.load(source)
    vectors = retriever.encode([question for _, question in retriever.index])
    np.save(pathlib.Path(folder, "vectors.npy"), vectors)
    return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="Whose questions the vectors are made of.")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="With room for 8 GB.")
    parser.add_argument("--count", type=positive, default=10_000_000)
    parser.add_argument("--factory", default="IVF4096,SQ8")
    parser.add_argument("--probes", type=positive, nargs="+", default=[10])
    parser.add_argument("--keep", action="store_true", help="Leave the index in the folder.")
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    folder, module = str(given.folder.resolve()), "benchmarks.ten_million"
    run(module, {"what": "encode", "folder": folder, "source": given.run})
    recipe = {"factory": given.factory, "probes": given.probes[0]}
    arguments = {"folder": folder, "count": given.count}
    print(json.dumps(run(module, {"what": "build", "recipe": recipe, **arguments})), flush=True)
    run(module, {"what": "exact", **arguments})
    print(json.dumps(run(module, {"what": "search", "probes": given.probes, **arguments})))
    if not given.keep:
        shutil.rmtree(given.folder)
    return 0


if __name__ == "__main__":
    sys.exit(program(main, measure))
