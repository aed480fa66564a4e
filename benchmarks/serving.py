"""Measure searches a second over HTTP, and count acknowledged changes that a kill loses.

    python -m benchmarks.serving --index my_index --queries questions.txt

`wrk` (which must be on the PATH) sends one query a request over 32 connections, on the same cores.
Then it searches for `--minutes` while one client adds, replaces and removes questions. Half way the
server is killed and restarted; at the end the index must have every acknowledged change. All of
this runs on a copy of the index.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from benchmarks.measuring import positive
from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError
from qpr_jax.retriever import Retriever

TOKEN = "of-the-benchmark"
_LATENCY = re.compile(r"(\d+)%\s+([\d.]+\w+)")
CONNECTIONS = 32
WRK_SCRIPT = """
local queries, i = {}, 0
for line in io.lines("%s") do queries[#queries + 1] = line end
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  i = i %% #queries + 1
  return wrk.format(nil, "/search", nil, queries[i])
end
"""


@contextlib.contextmanager
def server(index: pathlib.Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "qpr_jax.cli.main", "serve", str(index), "--port", "0"]
    environment = os.environ | {"QPR_TOKEN": TOKEN}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr
        line = process.stderr.readline()
        address = re.search(r"http://\S+:\d+", line)
        if not address:
            raise UserError(f"the server did not start: {line.strip()}")
        try:
            yield address[0], process
        finally:
            process.kill()


def start_wrk(address: str, script: pathlib.Path, seconds: float) -> subprocess.Popen[str]:
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:.0f}s", "--latency", f"-s{script}"]
    return subprocess.Popen([*command, address], stdout=subprocess.PIPE, text=True)


def read_wrk(load: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for wrk and read its report."""
    report, _ = load.communicate()
    rate, latency = re.search(r"Requests/sec:\s+([\d.]+)", report), dict(_LATENCY.findall(report))
    if not rate or load.returncode:
        raise UserError(f"wrk failed: {report}")
    wrong = re.search(r"Non-2xx or 3xx responses: (\d+)", report)
    broken = re.search(r"Socket errors: (.*)", report)
    return {
        "searches_per_second": float(rate[1]),
        "ms_p50": milliseconds(latency["50"]),
        "ms_p99": milliseconds(latency["99"]),
        "errors": int(wrong[1]) if wrong else 0,
        "socket_errors": broken[1] if broken else "none",
    }


def milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(\w+)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def send_change(address: str, method: str, path: str, body: Any = None) -> bool:
    """Send a change and return whether it was acknowledged."""
    request = urllib.request.Request(
        address + path,
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status in (200, 204)
    except urllib.error.HTTPError as error:
        raise UserError(f"{method} {path}: {error.code} {error.read().decode()}") from None
    except (OSError, http.client.HTTPException):  # killed before it answered
        return False


class Changes:
    """Makes changes, and keeps the texts that each id may have now; None: removed."""

    def __init__(self, index: pathlib.Path) -> None:
        self.known: dict[int, set[str | None]] = {}
        self._draw = random.Random(0)
        self._next = 1 + max(question.id for question in Retriever.load(index).store.questions())
        self.acknowledged = 0

    def run(self, address: str, seconds: float) -> None:
        """Make changes until the time is over or the server does not answer."""
        stop = time.monotonic() + seconds
        while time.monotonic() < stop and self._change_one(address):
            self.acknowledged += 1
            time.sleep(0.02)

    def _change_one(self, address: str) -> bool:
        # Without those whose removal was not acknowledged, which may have happened.
        there = [value for value, states in self.known.items() if None not in states]
        if there and self._draw.random() < 0.4:
            value, text = self._draw.choice(there), None
        else:
            replaced = there and self._draw.random() < 0.3
            value = self._draw.choice(there) if replaced else self._next
            self._next += value == self._next
            text = f"what is number {value} of {self._draw.random()}?"
        before = self.known.get(value, {None})
        self.known[value] = before | {text}  # either, until it is acknowledged
        if text is None:
            done = send_change(address, "DELETE", f"/questions/{value}")
        else:
            done = send_change(address, "POST", "/questions", {"questions": [text], "ids": [value]})
        if done:
            self.known[value] = {text}
        return done

    def lost(self, index: pathlib.Path) -> int:
        """The number of acknowledged changes that the folder does not have."""
        there = {question.id: question.text for question in Retriever.load(index).store.questions()}
        return sum(there.get(value) not in states for value, states in self.known.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index", type=pathlib.Path, required=True)
    parser.add_argument("--queries", type=pathlib.Path, required=True, help="A question a line.")
    parser.add_argument("--seconds", type=positive, default=30)
    parser.add_argument("--minutes", type=positive, default=10)
    given = parser.parse_args()
    if not shutil.which("wrk"):
        raise UserError("expected wrk on the PATH, found none; install it")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        index = shutil.copytree(
            given.index, folder / "index", ignore=shutil.ignore_patterns("checkpoints")
        )
        queries = [line for line in given.queries.read_text("utf-8").splitlines() if line.strip()]
        bodies = [json.dumps({"queries": [line[:2000]], "k": 5}) for line in queries[:20_000]]
        random.Random(0).shuffle(bodies)
        (folder / "bodies").write_text("\n".join(bodies) + "\n")
        script = folder / "ask.lua"
        script.write_text(WRK_SCRIPT % (folder / "bodies"))
        with server(index) as (address, _):
            read_wrk(start_wrk(address, script, 3))
            print(
                json.dumps({"reads": read_wrk(start_wrk(address, script, given.seconds))}),
                flush=True,
            )
        changes, half = Changes(index), 30 * given.minutes
        for killed in (True, False):
            with server(index) as (address, process):
                load = start_wrk(address, script, half)
                if killed:  # while changes are being made
                    threading.Timer(half, process.kill).start()
                changes.run(address, half + 10 if killed else half)
                if killed:
                    load.kill()
                    load.communicate()
                else:
                    print(json.dumps({"reads, with writes": read_wrk(load)}), flush=True)
        lost = changes.lost(index)
        print(json.dumps({"acknowledged_changes": changes.acknowledged, "lost": lost}))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(run_program(main))
