"""Run the benchmarks whose figures the pages quote, one after the other, and keep what they print.

    python -m benchmarks.all --runs runs/* --python other/bin/python
    python -m benchmarks.all --list
    python -m benchmarks.all tokenizing review --runs runs/quora_sdml

Each job of `benchmarks/jobs.py` writes results/benchmarks/JOB.json when it has ended: `measured`,
with command, commit, machine, date and seconds; `figures`, read from the tables, the lines of JSON
and the other lines that it printed; and `printed`, its lines. A job that has a file by the code
that is here is not run again (`--again`), so the same command goes on after a kill. Then `python -m
benchmarks.figures` brings the figures into the pages.

A table is `table` (then `table_2`, ...): a mapping from the label of a row, its first cell, or as
many joined by ", " as make them differ (the first empty ones repeat the row above), to a mapping
from the names of the columns, as identifiers, to a number or a list of them. A line of JSON is
`json`, `json_2`, ... Of any other line with a number `text` has its numbers under what stands
before its colon, or before its second number. `run` has the seconds of the whole program, of the
clock and of the processor.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.jobs import JOBS, Job
from experiments.measuring import ROOT, facts_of_measurement
from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError
from qpr_jax.files import read_json, write_json

OUT = ROOT / "results" / "benchmarks"


_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(?:\.\d+)?(?:e[-+]?\d+)?")


def numbers(text: str) -> list[float]:
    """The numbers in a text, whole ones as int."""
    found = (match.replace(",", "") for match in _NUMBER.findall(text))
    return [int(one) if one.lstrip("+-").isdecimal() else float(one) for one in found]


def name_of(text: str) -> str:
    """A text as an identifier: `recall@10` is recall_10."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "_"


def figures_in(lines: list[str]) -> dict[str, Any]:
    """The figures that a benchmark printed, by their names."""
    found: dict[str, Any] = {}
    text: dict[str, list[float]] = {}
    for table, group in itertools.groupby(lines, lambda line: line.startswith("|")):
        part = [*group]
        if table and len(part) > 2:
            found[_next_name("table", found)] = table_of(part)
            continue
        for line in part:
            if line.startswith("{"):
                found[_next_name("json", found)] = json.loads(line)
            elif numbers(line):
                before, colon, after = line.partition(": ")
                if not colon:
                    before, after = "".join(_NUMBER.split(line)[:2]), line
                text[_next_name(name_of(before), text)] = numbers(after)
    return found | ({"text": text} if text else {})


def _next_name(name: str, names: dict[str, Any]) -> str:
    others = (f"{name}_{number}" for number in itertools.count(2))
    return next(new for new in itertools.chain([name], others) if new not in names)


def table_of(lines: list[str]) -> dict[str, dict[str, Any]]:
    """The rows of a table of Markdown."""
    head, _, *rows = (
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines
    )
    for above, row in itertools.pairwise(rows):
        empty = len([*itertools.takewhile(lambda cell: not cell, row)])
        row[:empty] = above[:empty]
    for count in range(1, len(head)):
        labels = [", ".join(filter(None, map(label_of, row[:count]))) for row in rows]
        if len({*labels}) == len(rows):
            break
    columns: dict[str, int] = {}
    for place, cell in enumerate(head):
        columns[_next_name(name_of(label_of(cell)), columns)] = place
    return {
        label: {
            name: numbers(row[place]) if len(numbers(row[place])) > 1 else _first(row[place])
            for name, place in columns.items()
            if count <= place < len(row)
        }
        for label, row in zip(labels, rows, strict=True)
    }


def label_of(cell: str) -> str:
    """The text of a cell, of a run its name."""
    return re.sub(r"[*`]", "", cell).strip().removeprefix("runs/")


def _first(cell: str) -> float | None:
    return next(iter(numbers(cell)), None)


def record(name: str, job: Job, given: dict[str, str], shown: dict[str, str]) -> None:
    """Run a job and write its file; `shown` is what stands there in place of what is given.

    Raises:
      UserError: the benchmark failed.
    """
    variables = "".join(f"{key}={value} " for key, value in job.environment)
    program = f"{variables}{' '.join([*job.prefix, 'python'])} -m {job.module}"
    shown = shown | {"new": "/tmp/new"}
    command = " ".join([program, *job.words(shown)])
    measured = facts_of_measurement(command)
    print(f"\n{name}: {command}", flush=True)
    start, before, lines = time.monotonic(), _processor_seconds(), []
    with tempfile.TemporaryDirectory() as folder:
        given = given | {"new": f"{folder}/new"}
        words = job.words(given)
        environment = os.environ | dict(job.environment)
        with subprocess.Popen(
            [*job.prefix, sys.executable, "-m", job.module, *words],
            **{"stdout": subprocess.PIPE, "text": True, "cwd": ROOT, "env": environment},
        ) as running:
            for line in running.stdout or ():
                for key, value in given.items():  # no folders of this machine
                    line = line.replace(value, shown[key])
                print(line, end="", flush=True)
                lines.append(line.rstrip())
    if running.returncode:
        raise UserError(f"{name} ended with status {running.returncode}; see its output above")
    measured["seconds"] = round(time.monotonic() - start)
    run = {"seconds": measured["seconds"], "processor": round(_processor_seconds() - before)}
    figures = {"run": run} | figures_in(lines)
    write_json(OUT / f"{name}.json", {"measured": measured, "figures": figures, "printed": lines})


def _processor_seconds() -> float:
    """Of the processes that have ended, which this one started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def is_done(name: str) -> bool:
    """Whether a job has a file, made by the code that is here."""
    commit = measured_of(name).get("commit")
    if not commit or commit.endswith("-dirty"):
        return False
    code = ("benchmarks", "experiments", "qpr_jax")
    command = ["git", "-C", str(ROOT), "diff", "--quiet", commit, "--", *code]
    return subprocess.run(command, check=False).returncode == 0


def measured_of(name: str) -> dict[str, Any]:
    """What the file of a job says about its measurement; nothing where there is none."""
    path = OUT / f"{name}.json"
    return read_json(path).get("measured", {}) if path.exists() else {}


def main() -> int:
    """Run the jobs, or list them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="of --list; all by default")
    parser.add_argument("--list", action="store_true", help="the jobs, and the seconds they took")
    parser.add_argument("--runs", nargs="*", default=[], help="folders, by the names of the runs")
    parser.add_argument("--python", help="of an environment with PyTorch, to compare with")
    parser.add_argument("--queries", help="a file with a question a line, to be sent to a server")
    parser.add_argument("--before", help="a checkout of another version, to compare with")
    parser.add_argument("--trainings", help="a folder to train in, which keeps the runs")
    parser.add_argument("--again", action="store_true", help="also what is done")
    options = parser.parse_args()
    if unknown := sorted({*options.jobs} - {*JOBS}):
        raise UserError(f"expected names of jobs, got {', '.join(unknown)}")
    if options.list:
        print("| job | command | s |\n|---|---|---:|")
        for name, job in JOBS.items():
            command = f"`python -m {job.module} {job.arguments}".strip()
            print(f"| {name} | {command}` | {measured_of(name).get('seconds', '')} |")
        return 0
    given = {pathlib.Path(run).name: str(pathlib.Path(run).resolve()) for run in options.runs}
    shown = {name: f"runs/{name}" for name in given}
    extra = {
        "data": (os.environ.get("QPR_DATA_DIR"), "$QPR_DATA_DIR"),
        "python": (options.python, "other/bin/python"),
        "queries": (options.queries, "questions.txt"),
        "before": (options.before, "BEFORE"),
        "trainings": (options.trainings, "runs"),
    }
    given |= {key: value for key, (value, _) in extra.items() if value}
    shown |= {key: name for key, (_, name) in extra.items()}
    failed = 0
    for name in options.jobs or JOBS:
        if missing := sorted(JOBS[name].needs() - {*given}):
            print(f"{name}: left out, needs {', '.join(missing)}", file=sys.stderr)
        elif options.again or not is_done(name):
            try:
                record(name, JOBS[name], given, shown)
            except UserError as error:
                failed = 1
                print(f"error: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(run_program(main))
