"""Compare Milvus with FAISS in this process, at the same lists and probes, and kill its server.

    python -m benchmarks.milvus_index --run runs/quora_distilled --folder /tmp/milvus

Starts a server of the package `milvus`, loads the questions of the run's index into it, and into a
folder, and measures recall@20 against exact search, inserts a second, and searches through
`qpr serve` by 1 and by 16 clients, of the two stores in turns. With --kills 2 it then adds and
removes questions through `qpr serve` while it kills Milvus (SIGKILL) and starts it again, and looks
whether every change that was answered is there. What takes long is kept in the folder.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np

from benchmarks.milvus_server import make_server
from experiments.measuring import positive
from qpr_jax import Recipe, Retriever
from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError
from qpr_jax.index import milvus_load
from qpr_jax.index.exact import exact_top_k
from qpr_jax.milvus_retriever import MilvusRetriever

K, QUERIES, TOKEN = 20, 1000, "of-the-benchmark"
CLIENTS = (1, 16)


class Known:
    """An encoder that knows the vectors of some questions."""

    def __init__(self, encoder: Any, texts: list[str], vectors: np.ndarray) -> None:
        self._encoder, self._vectors = encoder, vectors
        self._rows = {text: row for row, text in enumerate(texts)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(self, questions: list[str]) -> np.ndarray:
        if all(question in self._rows for question in questions):
            return self._vectors[[self._rows[question] for question in questions]]
        return self._encoder.encode(questions)


def known_vectors(retriever: Retriever, texts: list[str], path: pathlib.Path) -> np.ndarray:
    """The vectors of all questions, from a file if it is there."""
    if not path.exists():
        np.save(path, retriever.encode(texts))
    return np.load(path)


def load(address: str, retriever: Retriever, known: Known, recipe: Recipe) -> dict[str, Any]:
    """Load the questions into Milvus, unless they are there; what it took."""
    with contextlib.suppress(UserError):
        Retriever.load(address)
        return {}
    spent, write = [0.0, 0], milvus_load.write_entities

    def timed(server: Any, build: str, entities: Any, vectors: Any) -> None:
        start = time.perf_counter()
        write(server, build, entities, vectors)
        spent[0] += time.perf_counter() - start
        spent[1] += len(entities)

    milvus_load.write_entities = timed
    start = time.perf_counter()
    own = Retriever(known, retriever.index, second_stages=retriever.second_stages)
    own.index.requested = recipe
    own.save(address)
    seconds = time.perf_counter() - start
    return {"inserts_per_second": round(spent[1] / spent[0]), "load_seconds": round(seconds)}


def recalls(index: Any, vectors: np.ndarray, recipe: Recipe, faiss_index: Any) -> dict[str, float]:
    """recall@20 of Milvus and of FAISS for some of the questions."""
    chosen = np.sort(np.random.default_rng(0).choice(len(vectors), QUERIES, replace=False))
    queries = vectors[chosen]
    exact = exact_top_k(queries, vectors, K, recipe.metric)[1]
    faiss_index.nprobe = recipe.probes
    found = {"milvus": index.find_rows(queries, K), "faiss": faiss_index.search(queries, K)[1]}
    return {
        name: float(np.mean([np.isin(a, b).mean() for a, b in zip(exact, rows, strict=True)]))
        for name, rows in found.items()
    }


@contextlib.contextmanager
def serving(named: str) -> Iterator[tuple[str, int]]:
    """`qpr serve` of a folder or an address: host and port."""
    command = [sys.executable, "-m", "qpr_jax.cli.main", "serve", named, "--port", "0"]
    environment = os.environ | {"QPR_TOKEN": TOKEN}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        lines = []
        for line in process.stderr or ():
            lines.append(line)
            if found := re.search(r"http://([\d.]+):(\d+)", line):
                break
        else:
            raise UserError(f"the server did not start: {''.join(lines)[:500]}")
        threading.Thread(target=lambda: [*(process.stderr or ())], daemon=True).start()
        try:
            wait_ready(found[1], int(found[2]))
            yield found[1], int(found[2])
        finally:
            process.kill()


def wait_ready(host: str, port: int) -> None:
    for _ in range(600):
        if call(host, port, "GET", "/ready")[0] == 200:
            return
        time.sleep(0.2)
    raise UserError("the server is not ready after two minutes")


def call(host: str, port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The status and the JSON of an answer; (0, None) where there is none."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if data else None
    except (OSError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()


def latencies(
    host: str, port: int, queries: list[str], clients: int, seconds: float, rerank: Any
) -> list[float]:
    """Milliseconds of each search by several clients, one query a request."""
    found: list[float] = []
    end = time.monotonic() + seconds

    def ask(first: int) -> None:
        connection, at = http.client.HTTPConnection(host, port, timeout=60), first
        while time.monotonic() < end:
            at += clients
            text = queries[at % len(queries)]
            body = json.dumps({"queries": [text], "k": K, "rerank": rerank})
            start = time.perf_counter()
            connection.request("POST", "/search", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise UserError(f"a search was answered by {answer.status}")
            found.append(1000 * (time.perf_counter() - start))

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def measure_serving(
    names: dict[str, str], queries: list[str], seconds: float, rounds: int
) -> list[dict[str, Any]]:
    """p50 and p99 of each store, in turns."""
    rows = []
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(serving(where)) for name, where in names.items()}
        for rerank in (False, None):
            for clients in CLIENTS:
                found: dict[str, list[float]] = {name: [] for name in servers}
                for _ in range(rounds):
                    for name, (host, port) in servers.items():
                        found[name] += latencies(host, port, queries, clients, seconds, rerank)
                for name, times in found.items():
                    p50, p99 = np.percentile(times, [50, 99])
                    rate = len(times) / (seconds * rounds)
                    row = {"store": name, "reranked": rerank is None, "clients": clients}
                    facts = {"p50_ms": p50, "p99_ms": p99, "searches_per_second": rate}
                    rows.append(row | {key: round(float(v), 2) for key, v in facts.items()})
                    print(json.dumps(rows[-1]), flush=True)
    return rows


def kill_and_restart(
    folder: pathlib.Path, server: Any, address: str, kills: int, seconds: float
) -> dict[str, Any]:
    """Change questions through `qpr serve` while Milvus is killed; changes answered and lost."""
    answered: dict[int, bool] = {}  # by id, whether it was added last
    facts = {"refused": 0, "down_seconds": []}
    stop = threading.Event()

    def change(host: str, port: int) -> None:
        number = 10**9
        while not stop.is_set():
            number += 1
            body = {"questions": [f"question of the kill {number}"], "ids": [number]}
            status, _ = call(host, port, "POST", "/questions", body)
            facts["refused"] += status == 503
            if status == 200:
                answered[number] = True
                if number % 3 == 0 and call(host, port, "DELETE", f"/questions/{number}")[0] == 204:
                    answered[number] = False
            elif number in answered:
                del answered[number]

    os.environ["QPR_MILVUS_TIMEOUT"] = "5"
    with serving(address) as (host, port):
        writer = threading.Thread(target=change, args=(host, port), daemon=True)
        writer.start()
        for _ in range(kills):
            time.sleep(seconds)
            server.server_proc.kill()
            server.server_proc.wait()
            start = time.monotonic()
            status, body = call(host, port, "POST", "/search", {"queries": ["a"], "rerank": False})
            facts["while_gone"] = [status, body]
            server = make_server(folder, server.listen_port)
            server.start()
            while call(host, port, "POST", "/search", {"queries": ["a"], "k": 1})[0] != 200:
                time.sleep(0.2)
            facts["down_seconds"].append(round(time.monotonic() - start, 1))
            print(json.dumps(facts), len(answered), flush=True)
        time.sleep(seconds)
        stop.set()
        writer.join()
    found = MilvusRetriever.load(address).index.stored([*answered])
    wrong = [
        number
        for (number, there), question in zip(answered.items(), found, strict=True)
        if there is (question is None)
    ]
    server.server_proc.kill()
    return facts | {"kills": kills, "answered": len(answered), "lost": len(wrong)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--run", required=True, help="has an index")
    parser.add_argument("--folder", required=True, help="of the server, and of what is kept")
    parser.add_argument("--out", help="gets the figures, as JSON")
    parser.add_argument("--factory", default="IVF2000,Flat")
    parser.add_argument("--seconds", default=5.0, type=positive, help="of a measurement")
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--kills", default=0, type=int)
    parser.add_argument("--skip-serving", action="store_true")
    options = parser.parse_args()
    folder = pathlib.Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    retriever = Retriever.load(options.run, indexed=True)
    recipe = Recipe(options.factory)
    texts = [question for _, question in retriever.index]
    vectors = known_vectors(retriever, texts, folder / "vectors.npy")
    known = Known(retriever.encoder, texts, vectors)
    os.environ["QPR_MILVUS_TIMEOUT"] = "60"
    server = make_server(folder / "milvus")
    server.start()
    facts: dict[str, Any] = {
        "run": options.run,
        "factory": options.factory,
        "questions": len(texts),
    }
    try:
        address = f"milvus://127.0.0.1:{server.listen_port}/quora"
        facts |= load(address, retriever, known, recipe)
        print(json.dumps(facts), flush=True)
        ours = MilvusRetriever.load(address)
        facts["segments"] = ours.collection.server.segments(ours.collection.build)
        index = flat_lists(folder / "lists.faiss", vectors, options.factory)
        facts["recall@20"] = recalls(ours.collection, vectors, recipe, index)
        print(json.dumps(facts), flush=True)
        if not options.skip_serving:
            names = {"faiss": options.run, "milvus": address}
            queries = texts[:: max(1, len(texts) // 2000)]
            facts["serving"] = measure_serving(names, queries, options.seconds, options.rounds)
        if options.kills:
            where = folder / "milvus"
            facts["kills"] = kill_and_restart(where, server, address, options.kills, 10.0)
    finally:
        if server.server_proc:
            server.server_proc.kill()
    print(json.dumps(facts))
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(facts, indent=2) + "\n")


def flat_lists(path: pathlib.Path, vectors: np.ndarray, factory: str) -> Any:
    """FAISS's index, each vector in one list."""
    if not path.exists():
        index = faiss.index_factory(vectors.shape[1], factory)
        index.train(vectors)
        index.add(vectors)
        faiss.write_index(index, str(path))
    return faiss.read_index(str(path))


if __name__ == "__main__":
    run_program(main)
