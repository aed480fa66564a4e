"""What ids that are strings, and payload, cost in an index: size, opening, search, look-up.

    python -m benchmarks.string_ids --folder /tmp/string_ids [--checkout PATH]

Each index has the same questions, of 57 bytes, and the same vectors, of 32 dimensions. It is built
in a process and opened in others, of which the best counts; files are in the cache of the system.
Times of calls are 10th percentiles, so that other programs of the machine matter little.
With --checkout, the first two rows are measured with the code of another checkout, too.

    bytes       of all files but the vectors, a question
    write s     of the processor, for the questions and their ids, with their files on disk
    open s      likewise, to an index; its lists of vectors are read by searches
    MB          of memory more after opening than before
    find ms     20 hits of one query, as `Hit`s; of 2,000 calls
    batch ms    20 hits of each of 256 queries; of 40
    read us     the questions of 20 rows; of 5,000
    look up us  an id, of 1,000 at once, half of them unknown; of 40
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.folder import new_build, read_index, write_index, write_store
from qpr_jax.index.question_index import QuestionIndex, build_vectors
from qpr_jax.index.recipe import Recipe

ROWS = ("numbers in order", "any numbers", "UUIDs", "numbers in order, payload", "UUIDs, payload")
OLD_ROWS = ROWS[:2]  # which every checkout can have
MEASURED = ("bytes", "write s", "open s", "MB", "find ms", "batch ms", "read us", "look up us")
_DIMENSION, _CENTERS = 32, 4096


def id_of(row: str, number: int) -> int | str:
    """The id of a question; of different numbers they differ."""
    if row.startswith("numbers in order"):
        return number
    mixed = number * 0x9E3779B97F4A7C15 % 2**64  # a product with an odd number is a permutation
    if row.startswith("any numbers"):
        return mixed >> 1 if number % 2 else number
    return str(uuid.UUID(int=mixed << 64 | mixed))


def questions_of(row: str, count: int) -> Iterator[StoredQuestion]:
    for number in range(count):
        text = f"what is the best way to learn subject {number:07d} in {number % 90 + 10} days?"
        if row.endswith("payload"):
            url = f"https://example.org/questions/{number}"
            payload: Any = {"url": url, "tags": ["learning", "days"], "answers": number % 7}
            yield StoredQuestion(id_of(row, number), text, payload)
        else:
            yield StoredQuestion(id_of(row, number), text)


def encode(texts: Sequence[str]) -> np.ndarray:
    """Vectors around random centers, float32 [n, 32]."""
    hashes = np.fromiter((zlib.crc32(text.encode()) for text in texts), np.int64, len(texts))
    near = _TABLE[hashes % len(_TABLE)] + np.float32(0.3) * _TABLE[hashes // 7 % len(_TABLE)]
    return near.astype(np.float32)


_TABLE = np.random.default_rng(0).normal(size=(_CENTERS, _DIMENSION)).astype(np.float32)


def build(folder: pathlib.Path, row: str, count: int) -> dict[str, float]:
    folder.mkdir(parents=True)
    start = time.process_time()
    store = write_store(folder, questions_of(row, count), name := new_build(), count)
    written = time.process_time() - start
    vectors = build_vectors(encode, store, recipe := Recipe(factory="IVF2000,Flat"))
    write_index(folder, QuestionIndex(vectors, store, recipe, "made up"), name, "export")
    size = sum(p.stat().st_size for p in folder.iterdir() if not p.name.startswith("vectors"))
    return {"bytes": size / count, "write s": written}


def measure(folder: pathlib.Path, row: str, count: int) -> dict[str, float]:
    before, start = _memory(), time.process_time()
    index, _ = read_index(folder)
    opened, memory = time.process_time() - start, _memory() - before
    rng = np.random.default_rng(1)
    queries = encode([str(i) for i in range(256)])
    some = [rng.integers(count, size=20) for _ in range(5000)]
    singles, blocks = itertools.cycle(np.split(queries, 256)), itertools.cycle(some)
    asked = [id_of(row, int(n)) for n in rng.integers(2 * count, size=1000)]
    return {
        "open s": opened,
        "MB": memory,
        "find ms": 1e3 * _seconds(2000, lambda: index.find(next(singles), 20)),
        "batch ms": 1e3 * _seconds(40, lambda: index.find(queries, 20)),
        "read us": 1e6 * _seconds(5000, lambda: index.store.get(next(blocks))),
        "look up us": 1e3 * _seconds(40, lambda: index.store.rows_of(asked)),
    }


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _seconds(count: int, call: Callable[[], object]) -> float:
    """Seconds of a call, the 10th percentile of `count` after some more."""
    times = []
    for _ in range(count + 10):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.percentile(times[10:], 10))


def in_process(checkout: pathlib.Path, **arguments: object) -> dict[str, float]:
    """What `build` or `measure` returns in a process with the code of a checkout."""
    code = [sys.executable, "-P", __file__, "--step", json.dumps(arguments)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(code, env=environment, check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table_row(
    name: str, row: str, folder: pathlib.Path, count: int, checkout: pathlib.Path, repeats: int
) -> str:
    """Build an index, open it several times, and remove it."""
    given = {"folder": str(folder / "index"), "row": row, "count": count}
    facts = in_process(checkout, what="build", **given)
    opened = [in_process(checkout, what="measure", **given) for _ in range(repeats)]
    shutil.rmtree(folder / "index")
    facts |= {key: min(one[key] for one in opened) for key in opened[0]}
    cells = [f"{facts[key]:.3g}" if facts[key] < 100 else f"{facts[key]:.0f}" for key in MEASURED]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, help="A new one, for the indexes.")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--checkout", type=pathlib.Path, help="Of another version.")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        step = json.loads(given.step)
        function = {"build": build, "measure": measure}[step.pop("what")]
        print(json.dumps(function(pathlib.Path(step.pop("folder")), **step)))
        return 0
    here = pathlib.Path(__file__).parent.parent
    given.folder.mkdir(parents=True)
    print(f"| ids | {' | '.join(MEASURED)} |")
    print(f"|---|{'---:|' * len(MEASURED)}", flush=True)
    rows = [(row, row, here) for row in ROWS]
    if given.checkout:
        other = given.checkout.resolve()
        rows = [(f"{row} (other checkout)", row, other) for row in OLD_ROWS] + rows
    for name, row, checkout in rows:
        print(table_row(name, row, given.folder, given.count, checkout, given.repeats), flush=True)
    given.folder.rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())
