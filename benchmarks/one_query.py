"""Where the time of a search goes: one query from text to 20 hits, batches, and opening.

    python -m benchmarks.one_query --run runs/quora_sdml [--checkout PATH] [--rounds 5]

Searches are of one stage, for the held-out queries of a Quora run. With --checkout, the version
there takes turns with this one, block by block, each in a process of its own, on the same files.

    us       50th percentile of a query, on the clock
    cpu us   of the processor, a query: what counts where the machine is busy
    search   `Retriever.search` of one text: the sum of all
    encode   the text to its vector
    nearest  the vector to the 20 nearest rows
    hits     rows to `Hit`s with texts and payload
    batches  queries a second in batches of 1,024: on the clock, and of a second of the processor
    load s   `Retriever.load` in a new process, after its imports: on the clock, of the processor;
             files are in the cache of the system
    import s what it imports, likewise
    Hits@1   of the held-out queries, by the labelled pairs
    recall   share of the 10 nearest by exact search, of some of them
    equal    share of the 20 hits, with their order, that are those of this version
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

K, BATCH, BLOCK, EXACT = 20, 1024, 200, 500
STAGES = ("search", "encode", "nearest", "hits")


def pairs_of(run: pathlib.Path) -> dict[int, set[int]]:
    """The questions of the same meaning as each held-out query, by ids."""
    found: dict[int, set[int]] = {}
    for split in ("validation", "test"):
        lines = (run / "splits" / f"{split}.tsv").read_text("utf-8").splitlines()[1:]
        for line in lines:
            query, other = map(int, line.split("\t")[:2])
            found.setdefault(query, set()).add(other)
    return found


class Searcher:
    """A retriever of the version that is first on the path, asked by lines of JSON."""

    def __init__(self, run: str) -> None:
        start, cpu = time.perf_counter(), time.process_time()
        import faiss  # noqa: F401
        import numba  # noqa: F401

        from qpr_jax.retriever import Retriever

        imported = time.perf_counter(), time.process_time()
        self.retriever = Retriever.load(run)
        self.times = {
            "import s": [imported[0] - start, imported[1] - cpu],
            "load s": [time.perf_counter() - imported[0], time.process_time() - imported[1]],
        }
        self.pairs = pairs_of(pathlib.Path(run))
        self.ids = [*self.pairs]
        self.texts = [str(text) for text in self.retriever.index.questions(self.ids)]

    def opened(self) -> dict[str, Any]:
        return self.times

    def warm(self) -> dict[str, Any]:
        """Read all lists, and make all tables, as many searches would; compile what is compiled."""
        if hasattr(self.retriever.encoder, "warm_up"):
            self.retriever.encoder.warm_up()
        if stored := getattr(self.retriever.index.vectors, "_stored", None):
            stored.read_all()
        self.retriever.search(self.texts[:BATCH], K, rerank=False)
        self.block(0)
        return {}

    def block(self, number: int) -> dict[str, Any]:
        """Times of the stages, for some of the queries."""
        first = number * BLOCK % (len(self.texts) - BLOCK)
        texts, index = self.texts[first : first + BLOCK], self.retriever.index
        vectors = [self.retriever.encode([text]) for text in texts]
        rows = [index.search(vector, K) for vector in vectors]
        return {
            "search": timed(lambda text: self.retriever.search([text], K, rerank=False), texts),
            "encode": timed(lambda text: self.retriever.encode([text]), texts),
            "nearest": timed(lambda vector: index.vectors.search(vector, K), vectors),
            "hits": timed(lambda found: index.hits(*found), rows),
        }

    def batch(self, number: int) -> dict[str, Any]:
        first = number * BATCH % (len(self.texts) - BATCH)
        texts = self.texts[first : first + BATCH]
        start, cpu = time.perf_counter(), time.process_time()
        self.retriever.search(texts, K, rerank=False)
        return {"batches": [time.perf_counter() - start, time.process_time() - cpu]}

    def quality(self) -> dict[str, Any]:
        index = self.retriever.index
        vectors = self.retriever.encode(self.texts)
        hits = index.find(vectors, K)
        right = 0
        for value, found in zip(self.ids, hits, strict=True):
            best = next(hit.id for hit in found if hit.id != value)
            right += best in self.pairs[value]
        from qpr_jax.index.exact import exact_top_k

        some = np.linspace(0, len(vectors) - 1, EXACT).astype(int)
        every, live = self.retriever.encode([text for _, text in index]), np.array(index.live_ids())
        nearest = live[exact_top_k(vectors[some], every, 10)[1]]
        shares = [
            len({*near} & {hit.id for hit in hits[i][:10]}) / 10
            for i, near in zip(some.tolist(), nearest.tolist(), strict=True)
        ]
        return {
            "Hits@1": right / len(hits),
            "recall": float(np.mean(shares)),
            "ids": [[hit.id for hit in found] for found in hits],
        }


def timed(call: Callable[[Any], object], arguments: list[Any]) -> list[float]:
    """The median on the clock and the mean of the processor, of a call, in microseconds."""
    times, cpu = [], time.process_time()
    for argument in arguments:
        start = time.perf_counter()
        call(argument)
        times.append(time.perf_counter() - start)
    cpu = (time.process_time() - cpu) / len(arguments)
    return [1e6 * float(np.median(times)), 1e6 * cpu]


def answer(run: str) -> int:
    """Measure what the lines of the standard input ask for."""
    searcher = Searcher(run)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(searcher, name)(*arguments)), flush=True)
    return 0


class Version:
    """A process that measures the version of a checkout."""

    def __init__(self, checkout: str, run: str) -> None:
        environment = os.environ | {"PYTHONPATH": checkout}
        command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--answer", run]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd="/"
        )

    def ask(self, *what: Any) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(what), file=self._process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> None:
        self._process.communicate()


def compare(checkouts: dict[str, str], run: str, rounds: int) -> dict[str, dict[str, Any]]:
    """Medians over rounds, of each version."""
    found: dict[str, dict[str, list[Any]]] = {name: {} for name in checkouts}

    def note(name: str, values: dict[str, Any]) -> None:
        for key, value in values.items():
            found[name].setdefault(key, []).append(value)

    versions: dict[str, Version] = {}
    for turn in range(3):  # the first reads files into the cache, and may compile
        for name, checkout in checkouts.items():
            if name in versions:
                versions.pop(name).end()
            versions[name] = Version(checkout, run)
            opened = versions[name].ask("opened")
            if turn:
                note(name, opened)
    for version in versions.values():
        version.ask("warm")
    for number in range(rounds):
        for what in ("block", "batch"):
            for name, version in versions.items():
                note(name, version.ask(what, number))
                print(f"{name}: {what} {number}", file=sys.stderr, flush=True)
    report: dict[str, dict[str, Any]] = {}
    print(json.dumps(found), file=sys.stderr, flush=True)
    for name, version in versions.items():
        quality, values = version.ask("quality"), found[name]
        medians = {key: np.median(np.array(value), axis=0) for key, value in values.items()}
        report[name] = {key: [float(v) for v in value] for key, value in medians.items()}
        report[name] |= quality
        version.end()
    return report


def page(report: dict[str, dict[str, Any]]) -> str:
    """The report as a table of Markdown."""
    names = [*report]
    rows = [["", *names], ["---", *("---:" for _ in names)]]
    for stage in STAGES:
        for place, unit in enumerate(("us", "cpu us")):
            values = [f"{report[name][stage][place]:.0f}" for name in names]
            rows.append([f"{stage}, {unit}", *values])
    for place, unit in enumerate(("a second", "a second of the processor")):
        values = [f"{BATCH / report[name]['batches'][place]:,.0f}" for name in names]
        rows.append([f"batches, {unit}", *values])
    for kind in ("load s", "import s"):
        for place, unit in enumerate(("", ", of the processor")):
            rows.append([kind + unit, *(f"{report[name][kind][place]:.2f}" for name in names)])
    for kind in ("Hits@1", "recall"):
        rows.append([kind, *(f"{report[name][kind]:.4f}" for name in names)])
    ours = np.array(report[names[-1]]["ids"])
    shares = [(np.array(report[name]["ids"]) == ours).mean() for name in names]
    rows.append(["equal", *(f"{share:.5f}" for share in shares)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", default="runs/quora_sdml", help="Of Quora, with splits and an index."
    )
    parser.add_argument("--checkout", help="Of the version before.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        return answer(given.answer)
    here = str(pathlib.Path(__file__).resolve().parent.parent)
    before = {"before": str(pathlib.Path(given.checkout).resolve())} if given.checkout else {}
    run = str(pathlib.Path(given.run).resolve())
    print(page(compare({**before, "now": here}, run, given.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
