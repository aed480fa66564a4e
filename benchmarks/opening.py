"""What opening an index costs: of few and of many questions, after imports, with warm files.

    python -m benchmarks.opening --folder /tmp/opening [--count 2000000 10000000]

Made-up questions and vectors of 16 numbers, `IVF1024,SQ8`. Each index is built in a process and
opened in others, of which the median counts: seconds on the clock and of the processor, and MB of
memory more than before. `first` is the first search after it, which reads the lists that it needs.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import sys
import time
from typing import Any

import numpy as np

from experiments.measuring import positive, program, run
from qpr_jax.index.base import StoredQuestion, backend
from qpr_jax.index.folder import new_build, read_index, write_index, write_store
from qpr_jax.index.question_index import QuestionIndex, build_vectors
from qpr_jax.index.recipe import Recipe
from qpr_jax.machine import held_memory

RECIPE = Recipe("IVF1024,SQ8")
_DIMENSION, _REPEATS = 16, 5


def encode(questions: Any) -> np.ndarray:
    """Vectors of questions "... 0", "... 1", ..., float32 [n, 16]."""
    numbers = np.array([int(question.rpartition(" ")[2]) for question in questions], np.uint64)
    columns = np.arange(1, _DIMENSION + 1, dtype=np.uint64)
    mixed = (numbers[:, None] * 2 + 1) * columns * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(40)).astype(np.float32) / np.float32(2**24)


def build(folder: str, count: int) -> dict[str, Any]:
    where, name = pathlib.Path(folder), new_build()
    where.mkdir(parents=True)
    # Ids that are out of order, so that there is a file of it.
    ids = (number ^ 1 for number in range(count))
    questions = (StoredQuestion(value, f"how many are there of {value}") for value in ids)
    store = write_store(where, questions, name, count + 1)
    vectors = build_vectors(encode, store, RECIPE, folder=where)
    write_index(where, QuestionIndex(vectors, store, RECIPE, "generated"), name, "export")
    return {"MiB": sum(path.stat().st_size for path in where.iterdir()) / 2**20}


def open_it(folder: str) -> dict[str, Any]:
    query, _ = encode(["of 7"]), backend(RECIPE.factory)  # imports
    held, start, cpu = held_memory(), time.perf_counter(), time.process_time()
    index, _ = read_index(folder)
    found = {
        "s": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
        "MB": (held_memory() - held) / 1e6,
    }
    start = time.perf_counter()
    index.find(query, 20)
    return found | {"first": time.perf_counter() - start}


def measure(what: str, **arguments: Any) -> dict[str, Any]:
    return build(**arguments) if what == "build" else open_it(**arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="A new one.")
    parser.add_argument("--count", type=positive, nargs="+", default=[2_000_000, 10_000_000])
    given, module = parser.parse_args(), "benchmarks.opening"
    print("| questions | MiB | open, s | of the processor | MB | first search, s |")
    print("|---:|---:|---:|---:|---:|---:|")
    for count in given.count:
        folder = str(given.folder.resolve() / str(count))
        size = run(module, {"what": "build", "folder": folder, "count": count})["MiB"]
        times = [run(module, {"what": "open", "folder": folder}) for _ in range(_REPEATS)]
        median = {key: float(np.median([found[key] for found in times])) for key in times[0]}
        cells = (
            f"{median['s']:.2f} | {median['cpu']:.2f} | {median['MB']:.0f} | {median['first']:.3f}"
        )
        print(f"| {count:,} | {size:,.0f} | {cells} |", flush=True)
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(program(main, measure))
