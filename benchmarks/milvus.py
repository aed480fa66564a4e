"""Compare a Milvus collection with FAISS in this process, at the same recipe.

    milvus-server --data /tmp/milvus            # pip install '.[milvus]' milvus==2.3.5
    python -m benchmarks.milvus milvus://localhost:19530/bench --vectors vectors.npy

Measures the load, recall@10 against exact search, the time of a query and of a batch, and how long
an added question takes to be found. Without --vectors it draws clustered ones.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np

from qpr_jax.cli.program import run_program
from qpr_jax.index.base import Question
from qpr_jax.index.exact import exact_top_k
from qpr_jax.index.milvus import MilvusStore
from qpr_jax.index.recipe import Recipe

K, QUERIES = 10, 500


def clustered(count: int, dimension: int) -> np.ndarray:
    """Draw unit vectors around count / 10 centers, float32 [count, dimension]."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(max(1, count // 10), dimension)).astype(np.float32)
    noise = rng.normal(size=(count, dimension)).astype(np.float32)
    vectors = centers[rng.integers(len(centers), size=count)] + noise / 2
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds and the result of a call."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def measure_searches(
    search: Callable[[np.ndarray], np.ndarray], queries: np.ndarray, exact: np.ndarray
) -> dict[str, float]:
    """Return recall@10, and milliseconds a query, alone and in a batch, of [n, d] to [n, K]."""
    search(queries[:10])
    alone = [timed(lambda query=query: search(query[None]))[0] for query in queries[:200]]
    batch, rows = timed(lambda: search(queries))
    recall = np.mean([np.isin(some, row).mean() for some, row in zip(exact, rows, strict=True)])
    return {
        "recall@10": round(float(recall), 4),
        "ms_alone": round(1000 * float(np.median(alone)), 3),
        "ms_in_a_batch": round(1000 * batch / len(queries), 3),
    }


def measure_additions(store: MilvusStore, vectors: np.ndarray) -> float:
    """Return the median of milliseconds from an addition to the search that finds it."""

    def add_and_find(i: int) -> None:
        vector = vectors[i : i + 1] + np.float32(10 + i)
        store.add([Question(f"added {i}", "added")], vector)
        assert store.search(vector, 1)[0][0].id == f"added {i}"

    seconds = [timed(lambda i=i: add_and_find(i))[0] for i in range(10)]
    store.remove([f"added {i}" for i in range(10)])
    return round(1000 * float(np.median(seconds)), 1)


def main() -> None:
    """Print the facts as JSON."""
    layout = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("address")
    parser.add_argument("--vectors", type=pathlib.Path, help=".npy file, float32 [n, d]")
    parser.add_argument("--count", type=int, default=20_000, help="of drawn vectors")
    parser.add_argument("--factory", default="HNSW32", help="of FAISS and of Milvus")
    parser.add_argument("--probes", type=int, default=64)
    options = parser.parse_args()
    vectors = np.load(options.vectors) if options.vectors else clustered(options.count, 256)

    def encode(texts: list[str]) -> np.ndarray:
        return vectors[[int(text) for text in texts]]

    recipe = Recipe(options.factory, probes=options.probes)
    questions = (Question(i, str(i)) for i in range(len(vectors)))
    seconds, store = timed(
        lambda: MilvusStore.create(options.address, questions, encode, recipe, "bench", "bench")
    )
    index = faiss.index_factory(vectors.shape[1], options.factory)
    faiss_seconds = timed(lambda: (index.train(vectors), index.add(vectors)))[0]
    for name, value in (("efSearch", 2 * options.probes), ("nprobe", options.probes)):
        holder = getattr(index, "hnsw", index)
        if hasattr(holder, name):
            setattr(holder, name, value)
    queries = vectors[np.random.default_rng(1).permutation(len(vectors))[:QUERIES]]
    queries = queries + np.float32(0.05) * np.roll(queries, 1, axis=0)
    exact = exact_top_k(queries, vectors, K, "l2")[1]

    def in_milvus(some: np.ndarray) -> np.ndarray:
        return np.array([[hit.id for hit in hits] for hits in store.search(some, K)])

    facts: dict[str, Any] = {"questions": len(vectors), "factory": options.factory}
    facts["milvus"] = {"load_seconds": round(seconds, 1)}
    facts["milvus"] |= measure_searches(in_milvus, queries, exact)
    facts["milvus"]["ms_from_added_to_found"] = measure_additions(store, vectors)
    facts["faiss"] = {"build_seconds": round(faiss_seconds, 1)}
    facts["faiss"] |= measure_searches(lambda some: index.search(some, K)[1], queries, exact)
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    run_program(main)
