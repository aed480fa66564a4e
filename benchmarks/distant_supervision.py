"""Time and memory of distant supervision on generated logs, in memory and on local Spark.

    python -m benchmarks.distant_supervision --folder /tmp/logs --rows 1000000 20000000

The number of questions with the same answer follows a power law. A twentieth of the rows are random
questions with one of a few generic answers, which gives very large clusters. Memory is the total of
all processes, with shared pages counted once (Linux), sampled twice a second. If both engines run,
their folders must be equal to the byte.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import shutil
import sys
import threading
import time
from typing import Any

import numpy as np

from experiments.measuring import positive, program, run
from qpr_jax.distant import content_hash, make_folder
from qpr_jax.distant.logs import Logs, log_files
from qpr_jax.distant.method import Method
from qpr_jax.errors import UserError

MODULE = "benchmarks.distant_supervision"
WORDS = 50_000
ROWS_OF_AN_ANSWER = 8  # on average
GENERIC = ["Yes.", "No.", "I don't know.", "Sorry, I can't help with that.", "It depends."]
ASKED = [
    "what is the {} of {} in {}",
    "tell me the {} of {} {}",
    "{} {} {} please",
    "how does {} {} compare with {}",
    "do you know the {} {} for {}",
    "can you find {} {} and {}",
    "i want to hear about {} {} {}",
    "explain {} and {} to {}",
]


def generate(folder: str, rows: int, rows_per_file: int) -> dict[str, Any]:
    """Write logs of `rows` rows, at most `rows_per_file` in a file."""
    answers = rows // ROWS_OF_AN_ANSWER
    for number, start in enumerate(range(0, rows, rows_per_file)):
        count = min(rows_per_file, rows - start)
        draws = np.random.default_rng([0, number])
        answer = (answers * draws.random(count) ** 3).astype(np.int64)
        of_answer = (answer[:, None] * [7919, 104_729, 1_299_709] + [0, 17, 31]) % WORDS
        generic = draws.random(count) < 0.05
        of_answer[generic] = draws.integers(WORDS, size=(generic.sum(), 3))
        form = draws.integers(len(ASKED), size=count)
        extra = draws.integers(200, size=count)
        spoken = draws.integers(len(GENERIC), size=count)
        with gzip.open(pathlib.Path(folder, f"{number:04}.jsonl.gz"), "wt", 1) as file:
            for i, words in enumerate(of_answer.tolist()):
                question = ASKED[form[i]].format(*map("w{}".format, words))
                if extra[i] < 100:
                    question += f" e{extra[i]}"
                said = GENERIC[spoken[i]] if generic[i] else f"The answer {answer[i]}."
                file.write(f'{{"question": "{question}?", "answer": "{said}"}}\n')
    return {}


def make(logs: str, out: str, spark: str) -> dict[str, Any]:
    """Make the clusters of the logs in a folder; return counts, time and memory."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            peak.append(_memory_of_all())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    try:
        report = make_folder(out, Logs(log_files([logs])), Method(), spark=spark)
    finally:
        ended.set()
        watcher.join()
    names = ("rows", "questions", "clusters", "clusters_kept", "clustered_questions")
    return {
        "engine": spark or "memory",
        **{name: report[name] for name in names},
        "largest_cluster": max(c["size"] for c in report["largest_removed"]),
        "s": round(time.perf_counter() - start, 1),
        "s_per_million_rows": round(1e6 * (time.perf_counter() - start) / report["rows"], 1),
        "peak_gib": round(max(peak) / 2**30, 2),
        "sha256": content_hash(pathlib.Path(out)),
    }


def _memory_of_all() -> int:
    """Return the memory of this process and its descendants, shared pages counted once."""
    parents = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = status.read_text().rpartition(")")
        except OSError:  # the process ended
            continue
        parents[int(name.split()[0])] = int(rest.split()[1])
    ours, new = set(), {int(pathlib.Path("/proc/self").resolve().name)}
    while new:
        ours |= new
        new = {child for child, parent in parents.items() if parent in new} - ours
    held = 0
    for process in ours:
        try:
            text = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        held += 1024 * int(text.partition("\nPss:")[2].split()[0])
    return held


def measure(what: str, **arguments: Any) -> dict[str, Any]:
    return {"generate": generate, "make": make}[what](**arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="A new folder.")
    parser.add_argument(
        "--rows", type=positive, nargs="+", default=[1_000_000], help="Of each log."
    )
    parser.add_argument("--rows-of-a-file", type=positive, default=1_000_000)
    parser.add_argument(
        "--most-in-memory", type=positive, default=5_000_000, help="Larger logs use only Spark."
    )
    parser.add_argument("--spark", default="local[2]", help="The Spark master.")
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    for rows in given.rows:
        folder = (given.folder / str(rows)).resolve()
        logs = folder / "logs"
        logs.mkdir(parents=True)
        shape = {"rows": rows, "rows_per_file": given.rows_of_a_file}
        run(MODULE, {"what": "generate", "folder": str(logs), **shape})
        results = []
        for engine in ["", given.spark] if rows <= given.most_in_memory else [given.spark]:
            places = {"logs": str(logs), "out": str(folder / (engine or "memory"))}
            results.append(run(MODULE, {"what": "make", "spark": engine, **places}))
            print(json.dumps(results[-1]), flush=True)
        if len({report["sha256"] for report in results}) > 1:
            raise UserError("expected the same clusters from both engines, got different ones")
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(program(main, measure))
