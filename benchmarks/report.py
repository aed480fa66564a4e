"""Tables of the benchmark programs: printed, saved as JSON, and published as Markdown."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qpr_jax.running import cpu_count, peak_memory

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "benchmarks"
README = ROOT / "README.md"
MARKERS = "<!-- results -->", "<!-- end -->"
NAMES = ("compare", "encode", "search", "duplicates", "serve", "train", "loss", "install")
NAMES_GPU = ("train_gpu", "loss_gpu")
ESTIMATES = ("estimate",)
PAGE = """# Benchmarks

`python -m benchmarks --save` measures and writes this page; `--quick` takes ten minutes.
`python -m benchmarks.NAME --help` describes one program.
"""


@dataclass(frozen=True)
class Table:
    """A table of strings. `note`: a sentence below it."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """Format it, without its title."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        note = f"\n{self.note}\n" if self.note else ""
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + note


def parser(doc: str) -> argparse.ArgumentParser:
    """Return a parser with the flags that all programs have."""
    layout = argparse.RawDescriptionHelpFormatter
    flags = argparse.ArgumentParser(description=doc, formatter_class=layout)
    flags.add_argument("--quick", action="store_true", help="measure less, in a minute or two")
    flags.add_argument("--save", action="store_true", help="write the tables to results/benchmarks")
    return flags


def finish(name: str, options: argparse.Namespace, tables: list[Table], readme: str = "") -> None:
    """Print the tables of a program; save them and render the page if `--save` is options.

    readme: the table that README.md shows.
    """
    for table in tables:
        print(f"\n{table.title}\n\n{table.markdown()}")
    if options.save:
        from experiments.scores import commit  # loads pandas, whose memory no program measures

        words = [word for word in sys.argv[1:] if word != "--save"]
        if accelerator() and name not in ESTIMATES:
            name += "_gpu"
        found = {
            "command": " ".join([f"python -m benchmarks.{name.removesuffix('_gpu')}", *words]),
            "machine": machine(),
            "commit": commit(),
            "date": time.strftime("%Y-%m-%d"),
            "tables": [asdict(table) for table in tables],
        }
        text = json.dumps(found | ({"readme": readme} if readme else {}), indent=1)
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        render()


def rendered() -> dict[pathlib.Path, str]:
    """Return the text of each page that the saved tables give, by path."""
    parts, readme = [PAGE], README.read_text(encoding="utf-8")
    for name in NAMES + NAMES_GPU + ESTIMATES:
        path = RESULTS / f"{name}.json"
        if not path.is_file():
            continue
        saved = json.loads(path.read_text(encoding="utf-8"))
        where = f"{saved['machine']}; commit {saved['commit']}, {saved['date']}"
        title = name.capitalize().replace("_gpu", " on a GPU")
        parts.append(f"## {title}\n\n`{saved['command']}` ({where})\n")
        for table in saved["tables"]:
            parts.append(f"**{table['title']}**\n\n{Table(**table).markdown()}")
        if "readme" in saved:
            start, end = MARKERS
            before, rest = readme.split(start)
            after = rest.split(end)[1]
            readme = f"{before}{start}\n\n{saved['readme']}\n{end}{after}"
    return {RESULTS / "README.md": "\n".join(parts), README: readme}


def render() -> None:
    """Write the pages of `rendered`."""
    for path, text in rendered().items():
        path.write_text(text, encoding="utf-8")


def machine() -> str:
    """Describe the processors."""
    name = "unknown processor"
    if (info := pathlib.Path("/proc/cpuinfo")).is_file():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        name = lines[0].partition(":")[2].strip() if lines else name
    devices = f"{accelerator()}, " if accelerator() else ""
    return f"{devices}{cpu_count()} cores, {name}, load {os.getloadavg()[0]:.1f} at the end"


def accelerator() -> str:
    """Return the name of the NVIDIA GPU of this machine; "" without one."""
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def peak_gib() -> str:
    """Return the most memory that this process has held on the first device that JAX uses."""
    import jax

    stats = jax.devices()[0].memory_stats() or {}  # none for a CPU
    return f"{stats.get('peak_bytes_in_use', peak_memory()) / 2**30:.2f}"


def median_seconds(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median time of each call over rounds, the calls in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(some) for name, some in times.items()}
