"""Install sizes, and the first commands after an installation.

    python -m benchmarks.install [--quick]

The sizes are those of packages that are installed here, without compiled Python files. The commands
run twice each: first with empty caches, where numba and XLA compile, and then again. --quick leaves
out the training.
"""

from __future__ import annotations

import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import report
from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError

PROJECT: dict[str, Any] = tomllib.loads((report.ROOT / "pyproject.toml").read_text("utf-8"))
CACHES = ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR")
QPR = (sys.executable, "-m", "qpr_jax.cli.main")
SAMPLE = (*QPR, "sample", "--out", "sample")
COMMANDS = {
    "qpr duplicates": "duplicates sample/questions.csv --out found{} --max-distance 0.3",
    "qpr index": "index my_index{} sample/questions.csv",
    "qpr search": "search my_index1 --query money -k 3",
}
TRAIN = (sys.executable, "-m", "experiments.main", "--config=synthetic_sdml", "--workdir=run{}")


def requirements(extra: str = "") -> list[str]:
    """Return what the core requires, and with the name of an extra what that adds."""
    project = PROJECT["project"]
    return project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])


def needed(lines: Iterable[str]) -> set[str]:
    """Return the names of all installed packages that these requirements need.

    Raises PackageNotFoundError if one is not installed.
    """
    left = [Requirement(line) for line in lines]
    seen: set[tuple[str, str]] = set()
    while left:
        asked = left.pop()
        name = canonicalize_name(asked.name)
        for extra in ("", *asked.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            # This project as its checkout is, not as it was installed.
            ours = name == "qpr-jax"
            lines = requirements(extra) if ours else metadata.requires(name) or []
            for requirement in map(Requirement, lines):
                if not requirement.marker or requirement.marker.evaluate({"extra": extra}):
                    left.append(requirement)
    return {name for name, _ in seen if name != "qpr-jax"}


def installed_bytes(name: str) -> int:
    """Return the size of the files of an installed package."""
    files = metadata.distribution(name).files or []
    paths = [file.locate() for file in files if "__pycache__" not in file.parts]
    return sum(pathlib.Path(str(path)).stat().st_size for path in paths)


def sizes() -> report.Table:
    """Return packages and megabytes of the core and of each extra."""
    rows = []
    for extra in ("", *sorted(PROJECT["project"]["optional-dependencies"])):
        try:
            names = needed(requirements(extra))
        except metadata.PackageNotFoundError as error:
            print(f"{extra}: {error.name} is not installed", file=sys.stderr)
            continue
        megabytes = sum(map(installed_bytes, names)) / 1e6
        rows.append([f"`.[{extra}]`" if extra else "`.`", f"{len(names)}", f"{megabytes:,.0f}"])
    return report.Table("Install sizes", ["install", "packages", "MB"], rows)


def run(command: Iterable[str], folder: pathlib.Path) -> tuple[float, float]:
    """Run a command in a folder; return wall seconds and CPU seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    caches = {name: str(folder / "caches" / name) for name in CACHES}
    environment = os.environ | caches | {"PYTHONPATH": str(report.ROOT)}
    done = subprocess.run(
        [*command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - start, used


def first_commands(with_training: bool) -> report.Table:
    """Return the times of the first commands of README.md, in one folder, in order."""
    commands = {name: (*QPR, *words.split()) for name, words in COMMANDS.items()}
    if with_training:
        commands["synthetic_sdml"] = TRAIN
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run(SAMPLE, folder)
        for name, words in commands.items():
            cells = []
            for number in (1, 2):
                both = run([word.format(number) for word in words], folder)
                cells += [f"{seconds:.1f}" for seconds in both]
            rows.append([f"`{name}`", *cells])
    head = ["command", "first, s", "CPU s", "again, s", "CPU s"]
    note = "In this order, beginning with empty caches; the tables have 2,000 rows."
    return report.Table("First commands", head, rows, note)


def main() -> int:
    """Measure."""
    options = report.parser(__doc__).parse_args()
    report.finish("install", options, [sizes(), first_commands(not options.quick)])
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
