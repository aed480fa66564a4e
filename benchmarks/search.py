"""Search of an index in a folder: recall, time, memory and opening; one thread.

    python -m benchmarks.search [--quick] [--encoder open_student] [--generated 2000000]

Indexes the Quora questions by `--encoder`. Queries are questions of the index with their first word
moved to the end. `--generated` also measures an index of so many vectors near those of the
questions.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import faiss
import numpy as np

from benchmarks import report
from qpr_jax.cli.program import run_program
from qpr_jax.data.question_pairs import read_question_pairs
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.protocol import IndexConfig, Question
from qpr_jax.index.vectors import Vectors, exact_top_k
from qpr_jax.retriever import Retriever
from qpr_jax.training.sources import find_quora

K, QUERIES, QUICK = 20, 2000, 30_000


def microseconds(call: Callable[[Any], Any], parts: Sequence[Any]) -> float:
    """Return the median time of a query over calls, each for one of `parts`."""
    call(parts[0])
    times = []
    for part in parts:
        start = time.perf_counter()
        call(part)
        times.append((time.perf_counter() - start) / len(part))
    return 1e6 * statistics.median(times)


def curve(built: Vectors, queries: np.ndarray) -> report.Table:
    """Return recall and time over the number of probes."""
    exact = exact_top_k(queries, built.built, 10, built.index_config.metric)[0][:, -1:]
    rows = []
    for probes in (8, 16, 32, 64, 128, 256):
        index_config = IndexConfig(built.index_config.factory, built.index_config.metric, probes)
        index = Vectors(index_config, built.factory, built.built, built.codes)
        found, search = index.search(queries, 10)[0], functools.partial(index.search, k=K)
        times = (search, [*queries[:500, None]]), (search, [queries[:1000]] * 3)
        recall = (found <= exact * (1 + 1e-6) + 1e-9).mean()
        rows.append([built.factory, f"{probes}", f"{recall:.3f}"])
        rows[-1] += [f"{microseconds(*part):.0f}" for part in times]
    head = ["index", "probes", "recall@10", "µs a query", "µs in a batch"]
    return report.Table("From a vector to 20 rows", head, rows)


def query_parts(retriever: Retriever, queries: list[str]) -> report.Table:
    """Return where the time of a query goes."""
    store = retriever.store
    assert isinstance(store, FolderStore)
    texts = [[query] for query in queries]
    vectors = [*retriever.encode(queries)[:, None]]
    parts: dict[str, tuple[Callable[[Any], Any], Sequence[Any]]] = {
        "encode": (retriever.encode, texts),
        "vector to 20 rows": (lambda vector: store.vectors.search(vector, K), vectors),
        "vector to 20 hits, with their texts": (lambda vector: store.search(vector, K), vectors),
        "text to 20 hits": (lambda text: retriever.search(text, K, rerank=False), texts),
        "text to 20 hits, two stages": (lambda text: retriever.search(text, K), texts),
    }
    rows = [[name, f"{microseconds(*part):.0f}"] for name, part in parts.items()]
    return report.Table("Where the time of a query goes", ["part", "µs, median"], rows)


def near(vectors: np.ndarray, count: int, size: int = 16_384) -> Iterator[np.ndarray]:
    """Yield `count` vectors around the given ones, float32 [n, d], part by part."""
    rng, scale = np.random.default_rng(0), vectors[:1000].std(axis=0).mean() / 3
    for start in range(0, count, size):
        rows = np.arange(start, min(start + size, count)) % len(vectors)
        noise = rng.standard_normal((len(rows), vectors.shape[1]), np.float32)
        yield vectors[rows] + scale * noise


def generated(store: FolderStore, count: int, precision: str, folder: pathlib.Path) -> list[str]:
    """Build an index of generated vectors; return a row of what it takes."""
    parts, start = near(store.vectors.built, count), time.perf_counter()
    built = FolderStore.create(
        folder / "index",
        (Question(i, f"what is generated question {i}") for i in range(count)),
        lambda texts: next(parts),
        IndexConfig(vectors=precision),
        encoder="0" * 64,
        dimension=store.dimension,
    )
    seconds = time.perf_counter() - start
    disk = sum(path.stat().st_size for path in (folder / "index").iterdir())
    queries = np.concatenate([*near(store.vectors.built[1000:], 1500)])[:, None]
    before = anonymous_bytes()
    start = time.process_time()
    opened = FolderStore(folder / "index")
    opening = time.process_time() - start
    start = time.perf_counter()
    for query in queries[:100]:
        opened.search(query, K)
    cold = (time.perf_counter() - start) / 100
    warm = microseconds(lambda query: opened.search(query, K), [*queries[100:]])
    memory = anonymous_bytes() - before
    exact = exact_top_k(queries[:200, 0], built.vectors.built, 10)[0][:, -1:]
    recall = (built.vectors.search(queries[:200, 0], 10)[0] <= exact * (1 + 1e-6)).mean()
    cells = [
        f"{count:,}",
        precision,
        built.vectors.factory,
        f"{seconds:.0f}",
        f"{disk / 2**30:.2f}",
    ]
    cells += [f"{memory / 2**30:.2f}", f"{opening:.2f}", f"{1e3 * cold:.2f}"]
    return [*cells, f"{warm / 1e3:.2f}", f"{recall:.3f}"]


def anonymous_bytes() -> int:
    """Return the memory of this process that no file backs."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


GENERATED = ["vectors", "precision", "index", "build, s", "disk, GiB", "memory, GiB"]
GENERATED += ["opening, CPU s", "first 100 queries, ms", "a query, ms", "recall@10"]


def main() -> int:
    """Measure."""
    parser = report.parser(__doc__)
    parser.add_argument("--encoder", default="open_student", help="encoder of the index")
    parser.add_argument("--generated", type=int, nargs="*", default=[], metavar="COUNT")
    parser.add_argument("--vectors", default="float32", help="precision of generated vectors")
    parser.add_argument("--folder", help="for temporary indexes")
    options = parser.parse_args()
    texts = read_question_pairs(find_quora()).questions
    texts = texts[:QUICK] if options.quick else texts
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = pathlib.Path(name)
        retriever = Retriever.build(texts, encoder=options.encoder)
        store = retriever.store
        assert isinstance(store, FolderStore)
        words = [text.split() for text in texts if text.isprintable()]
        rows = np.random.default_rng(0).choice(len(words), QUERIES, replace=False)
        queries = [" ".join([*words[row][1:], *words[row][:1]]) for row in rows]
        faiss.omp_set_num_threads(1)
        tables = [curve(store.vectors, retriever.encode(queries))]
        tables.append(query_parts(retriever, queries[:500]))
        faiss.omp_set_num_threads(os.cpu_count() or 1)
        tried = [
            generated(store, count, options.vectors, folder / f"generated_{count}")
            for count in options.generated
        ]
        if tried:
            tables.append(report.Table("Generated vectors", GENERATED, tried))
    note = f"{len(texts):,} Quora questions by `{options.encoder}`; one thread."
    tables[0] = dataclasses.replace(tables[0], note=note)
    report.finish("search", options, tables)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
