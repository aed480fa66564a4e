"""Searches a second over HTTP, and acknowledged changes that a kill loses.

    python -m benchmarks.serve [--quick] [--encoder open_student]

Serves an index of Quora questions. Clients in other processes, on the same cores, keep their
connections and send one query a request. Then one client adds and removes questions while others
search; the server is killed and the index must have every change that it acknowledged.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import numpy as np

from benchmarks import report
from qpr_jax.cli.program import run_program
from qpr_jax.data.question_pairs import read_question_pairs
from qpr_jax.errors import UserError
from qpr_jax.retriever import Retriever
from qpr_jax.training.sources import find_quora

TOKEN = "of-the-benchmark"
CONNECTIONS = (1, 8, 32)
SECONDS, QUICK = 20, 30_000


@contextlib.contextmanager
def server(index: pathlib.Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve an index; the address without `http://`, and the process."""
    command = [sys.executable, "-m", "qpr_jax.cli.main", "serve", str(index), "--port", "0"]
    environment = os.environ | {"QPR_TOKEN": TOKEN}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr
        try:
            addresses = (re.search(r"http://(\S+:\d+)", line) for line in process.stderr)
            address = next((found[1] for found in addresses if found), None)
            if address is None:
                raise UserError("the server did not start")
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield address, process
        finally:
            process.kill()


def send(connection: http.client.HTTPConnection, method: str, path: str, body: object) -> bytes:
    """Send a request; return the body of a response with a status below 300."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    connection.request(method, path, json.dumps(body), headers)
    response = connection.getresponse()
    answer = response.read()
    if response.status >= 300:
        raise UserError(f"{method} {path}: {response.status} {answer.decode()}")
    return answer


def search_for(address: str, queries: list[str], seconds: float) -> list[float]:
    """Search over one connection; return the seconds of each search."""
    times: list[float] = []
    connection = http.client.HTTPConnection(address, timeout=60)
    end = time.perf_counter() + seconds
    for query in itertools.cycle(queries):
        start = time.perf_counter()
        if start > end:
            return times
        send(connection, "POST", "/search", {"queries": [query], "k": 20})
        times.append(time.perf_counter() - start)
    return times


def load(index: pathlib.Path, queries: list[str], seconds: float) -> report.Table:
    """Return the rate and the latency over the number of connections."""
    rows = []
    context = multiprocessing.get_context("spawn")
    with server(index) as (address, _), context.Pool(max(CONNECTIONS)) as pool:
        search_for(address, queries, 2)
        for count in CONNECTIONS:
            searches = [(address, queries[i:] + queries[:i], seconds) for i in range(count)]
            times = [t for some in pool.starmap(search_for, searches, 1) for t in some]
            middle, slow = 1e3 * np.percentile(times, [50, 99])
            rows.append(
                [f"{count}", f"{len(times) / seconds:,.0f}", f"{middle:.1f}", f"{slow:.1f}"]
            )
    head = ["connections", "searches a second", "median, ms", "99th percentile, ms"]
    return report.Table("Searches, two stages, 20 hits", head, rows)


def changes(index: pathlib.Path, queries: list[str], seconds: float) -> report.Table:
    """Change the index, kill the server, and count what is lost."""
    acknowledged: dict[str, bool] = {}
    sent: set[str] = set()
    with server(index) as (address, process):
        reader = threading.Thread(target=_read_until_killed, args=(address, queries))
        reader.start()
        threading.Timer(seconds, process.kill).start()
        connection = http.client.HTTPConnection(address, timeout=60)
        with contextlib.suppress(OSError, http.client.HTTPException):
            for number in itertools.count():
                name = f"added {number}"
                sent.add(name)
                added = {"questions": [f"is this question {number}"], "ids": [name]}
                send(connection, "POST", "/questions", added)
                acknowledged[name] = True
                if number % 3 == 0:
                    sent.add(name)
                    send(connection, "DELETE", f"/questions/{name.replace(' ', '%20')}", None)
                    acknowledged[name] = False
        reader.join()
    found = {question.id for question in Retriever.load(index).store.questions()}
    sure = [name for name in acknowledged if name != max(sent, key=lambda n: int(n.split()[1]))]
    lost = sum((name in found) != acknowledged[name] for name in sure)
    rows = [[f"{seconds:.0f}", f"{len(sure):,}", f"{lost}"]]
    head = ["seconds until the kill", "questions added", "wrong after it"]
    return report.Table("Changes while others search, then a kill", head, rows)


def _read_until_killed(address: str, queries: list[str]) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        search_for(address, queries, 1e9)


def main() -> int:
    """Measure; 1 if an acknowledged change is lost."""
    parser = report.parser(__doc__)
    parser.add_argument("--encoder", default="open_student", help="encoder of the index")
    options = parser.parse_args()
    texts = read_question_pairs(find_quora()).questions[: QUICK if options.quick else None]
    seconds = 5 if options.quick else SECONDS
    queries = [" ".join(reversed(text.split(" "))) for text in texts[:: len(texts) // 2000]]
    with tempfile.TemporaryDirectory() as name:
        index = pathlib.Path(name, "index")
        Retriever.build(texts, encoder=options.encoder).save(index)
        tables = [load(index, queries, seconds), changes(index, queries, seconds)]
    report.finish("serve", options, tables)
    return int(tables[1].rows[0][2] != "0")


if __name__ == "__main__":
    sys.exit(run_program(main))
