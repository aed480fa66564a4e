"""Search of an index in a folder: recall, time, memory, opening, and another version in turns.

    python -m benchmarks.search RUN [--other CHECKOUT OTHER_RUN] [--generated 2000000]

RUN has an index and so does OTHER_RUN, made by the code of CHECKOUT. Queries are questions of the
index with their first word moved to the end. With --generated an index of so many questions with
vectors near those of RUN is built in a temporary folder of --folder and measured, too.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import faiss
import numpy as np

from qpr_jax.index.base import Question
from qpr_jax.index.exact import exact_top_k
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.vectors import Vectors
from qpr_jax.retriever import Retriever

K, QUERIES, ROUNDS = 20, 2000, 5
# What measures one version: it answers "one", "two", "batch" with seconds a query, by any version.
WORKER = """
import sys, time, faiss
faiss.omp_set_num_threads(1)
def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
from qpr_jax.retriever import Retriever
run, queries = sys.argv[1], open(sys.argv[2]).read().splitlines()
if len(sys.argv) > 3:
    from qpr_jax.index.folder import FolderStore
    import numpy as np
    before, start = anonymous(), time.process_time()
    store, vectors = FolderStore(run), np.load(sys.argv[3])
    opened = time.process_time() - start
    search = lambda some, rerank: [store.search(vectors[i : i + 1], 20) for i in some]
    queries = range(len(vectors))
else:
    before, start = anonymous(), time.process_time()
    retriever = Retriever.load(run)
    opened = time.process_time() - start
    def search(some, rerank):
        return [retriever.search([query], 20, rerank=rerank) for query in some]
cold = time.perf_counter()
search(queries[:100], False)
cold = (time.perf_counter() - cold) / 100
search(queries[:1000], False)
print(opened, cold, 1024 * (anonymous() - before), flush=True)
for line in sys.stdin:
    start, name = time.perf_counter(), line.strip()
    if name == "batch":
        some = queries[:1000]
        retriever.search(some, 20, rerank=False)
    else:
        some = queries[1000:1500]
        search(some, None if name == "two" else False)
    print((time.perf_counter() - start) / len(some), flush=True)
"""


class Worker:
    """A process that searches by the code of a checkout."""

    def __init__(self, checkout: pathlib.Path, run: str, *files: str) -> None:
        """Start it; `opened` (CPU seconds), `cold` (seconds a query), `bytes` (RssAnon)."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, run, *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        )
        self.opened, self.cold, self.bytes = map(float, self._line().split())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def seconds(self, what: str) -> float:
        """Return the seconds of a query, one stage alone, two stages alone, or in a batch."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return float(self._line())


def microseconds(call: Callable[[np.ndarray], Any], parts: list[np.ndarray]) -> float:
    """Return the median time of a query over calls for some queries each."""
    call(parts[0])
    times = []
    for part in parts:
        start = time.perf_counter()
        call(part)
        times.append((time.perf_counter() - start) / len(part))
    return 1e6 * statistics.median(times)


def print_curve(built: Vectors, queries: np.ndarray) -> None:
    """Print recall and times over the number of probes, with those of the paper's recipe."""
    exact = exact_top_k(queries, built.built, 10, built.recipe.metric)[0][:, -1:]
    print("| index | probes | recall@10 | µs a query | µs in a batch |\n|---|---|---|---|---|")
    for probes in (8, 16, 32, 64, 128, 256):
        recipe = Recipe(built.recipe.factory, built.recipe.metric, probes)
        index = Vectors(recipe, built.factory, built.built, built.codes)
        found, search = index.search(queries, 10)[0], functools.partial(index.search, k=K)
        alone = microseconds(search, [*queries[:500, None]])
        batch = microseconds(search, [queries[:1000]] * 3)
        recall = (found <= exact * (1 + 1e-6) + 1e-9).mean()
        print(
            f"| {built.factory} | {probes} | {recall:.3f} | {alone:.0f} | {batch:.0f} |", flush=True
        )


def print_parts(retriever: Retriever, store: FolderStore, queries: list[str]) -> None:
    """Print where the time of a query of one stage goes, by calls of one query each in turns."""
    parts: dict[str, Callable[[str, np.ndarray], Any]] = {
        "encode": lambda text, vector: retriever.encode([text]),
        "vector to 20 rows": lambda text, vector: store.vectors.search(vector, K),
        "vector to 20 hits, with their texts": lambda text, vector: store.search(vector, K),
        "text to 20 hits": lambda text, vector: retriever.search([text], K, rerank=False),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for text, vector in zip(queries, retriever.encode(queries)[:, None], strict=True):
        for name, call in parts.items():
            start = time.perf_counter()
            call(text, vector)
            times[name].append(1e6 * (time.perf_counter() - start))
    print("\n| part | µs, median | µs, lower decile |\n|---|---|---|")
    for name, some in times.items():
        decile = statistics.quantiles(some, n=10)[0]
        print(f"| {name} | {statistics.median(some):.0f} | {decile:.0f} |", flush=True)


def print_versions(run: str, other: list[str], queries: list[str]) -> None:
    """Print the times of two versions, in turns, and their ratios."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(queries))
        file.flush()
        ours = Worker(pathlib.Path.cwd(), os.path.abspath(run), file.name)
        theirs = Worker(pathlib.Path(other[0]), os.path.abspath(other[1]), file.name)
        print("\n| one thread | other version | this one | ratio |\n|---|---|---|---|")
        for what, name in (
            ("one", "text to 20 hits, one stage, µs"),
            ("two", "text to 20 hits, two stages, µs"),
            ("batch", "a query of a batch of 1,000, one stage, µs"),
        ):
            rounds = [(theirs.seconds(what), ours.seconds(what)) for _ in range(ROUNDS)]
            before, now = (1e6 * statistics.median(times) for times in zip(*rounds, strict=True))
            ratio = statistics.median(new / old for old, new in rounds)
            print(f"| {name} | {before:.0f} | {now:.0f} | {ratio:.2f} |", flush=True)
        print(f"| opening, CPU s | {theirs.opened:.2f} | {ours.opened:.2f} | |")
        megabytes = [f"{worker.bytes / 1e6:.0f}" for worker in (theirs, ours)]
        print(f"| memory after 1,000 queries, MB (RssAnon) | {' | '.join(megabytes)} | |")


def near(vectors: np.ndarray, count: int, size: int = 100_000) -> Iterator[np.ndarray]:
    """Yield `count` vectors around the given ones, float32 [n, d], part by part."""
    rng, scale = np.random.default_rng(0), vectors[:1000].std(axis=0).mean() / 3
    for start in range(0, count, size):
        rows = np.arange(start, min(start + size, count)) % len(vectors)
        noise = rng.standard_normal((len(rows), vectors.shape[1]), np.float32)
        yield vectors[rows] + scale * noise


def print_generated(store: FolderStore, count: int, parent: str | None, precision: str) -> None:
    """Build an index of generated vectors and print what it takes."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=parent))
    parts = near(store.vectors.built, count, 16_384)
    try:
        start, cpu = time.perf_counter(), time.process_time()
        made = FolderStore.create(
            folder / "index",
            (Question(i, f"what is generated question {i}") for i in range(count)),
            lambda texts: next(parts),
            Recipe(vectors=precision),
            encoder="0" * 64,
            dimension=store.dimension,
        )
        print(f"\n{count:,} generated vectors ({precision}), {made.factory}:")
        print(
            f"- build: {time.perf_counter() - start:.0f} s, CPU {time.process_time() - cpu:.0f} s"
        )
        disk = sum(path.stat().st_size for path in (folder / "index").iterdir())
        queries = np.concatenate([*near(store.vectors.built[1000:], 1500)])
        np.save(folder / "queries.npy", queries)
        files = str(folder / "index"), "/dev/null", str(folder / "queries.npy")
        worker = Worker(pathlib.Path.cwd(), *files)
        times = [worker.seconds("one") for _ in range(ROUNDS)]
        print(f"- disk {disk / 2**30:.2f} GiB, memory {worker.bytes / 2**30:.3f} GiB (RssAnon)")
        print(
            f"- opening {worker.opened:.2f} s CPU; the first 100 queries {1e3 * worker.cold:.2f} ms"
        )
        print(f"- then {1e3 * statistics.median(times):.2f} ms a query to 20 hits")
        some = queries[:200]
        exact = exact_top_k(some, made.vectors.built, 10)[0][:, -1:]
        found = made.vectors.search(some, 10)[0]
        print(f"- recall@10 {(found <= exact * (1 + 1e-6)).mean():.3f}", flush=True)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run")
    parser.add_argument("--other", nargs=2, metavar=("CHECKOUT", "RUN"))
    parser.add_argument("--generated", type=int, nargs="*", default=[])
    parser.add_argument("--vectors", default="float32", help="Precision of generated vectors.")
    parser.add_argument("--folder", help="For generated indexes.")
    given = parser.parse_args()
    retriever = Retriever.load(given.run)
    store = retriever.store
    assert isinstance(store, FolderStore)
    texts = [question.text.split() for question in store.questions() if question.text.isprintable()]
    rows = np.random.default_rng(0).choice(len(texts), QUERIES, replace=False)
    queries = [" ".join([*texts[row][1:], *texts[row][:1]]) for row in rows]
    faiss.omp_set_num_threads(1)
    print_curve(store.vectors, retriever.encode(queries))
    print_parts(retriever, store, queries)
    if given.other:
        print_versions(given.run, given.other, queries)
    faiss.omp_set_num_threads(os.cpu_count() or 1)
    for count in given.generated:
        print_generated(store, count, given.folder, given.vectors)


if __name__ == "__main__":
    main()
