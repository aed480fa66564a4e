"""What each extra of `pyproject.toml` installs, and how many megabytes that takes on disk.

    python -m benchmarks.install_sizes

Reads what is installed here, so install the extras first (`.[dev]`): an extra with a package that
is not installed is left out, with a line that says so. Nothing is downloaded. Megabytes are those
of the packages' files without compiled Python files; `new` are the packages that the core lacks.
"""

from __future__ import annotations

import pathlib
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def requirements(extra: str = "") -> list[str]:
    """What the core requires, and with the name of an extra what that adds."""
    return PROJECT["dependencies"] + (PROJECT["optional-dependencies"][extra] if extra else [])


def needed(lines: Iterable[str]) -> set[str]:
    """The names of all installed packages that these requirements need, themselves included.

    PackageNotFoundError where one is not installed.
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
            left += [
                requirement
                for requirement in map(Requirement, _lines(name, extra))
                if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in seen if name != "qpr-jax"}


def _lines(name: str, extra: str) -> list[str]:
    if name == "qpr-jax":  # as it is here, not as it was installed
        return requirements(extra)
    return metadata.requires(name) or []


def installed_bytes(name: str) -> int:
    """Bytes of the files of an installed package."""
    files = metadata.distribution(name).files or []
    paths = [file.locate() for file in files if "__pycache__" not in file.parts]
    return sum(pathlib.Path(str(path)).stat().st_size for path in paths)


def main() -> int:
    """Print the table."""
    core = needed(requirements())
    print("| install | packages | MB | new |\n|---|---:|---:|---|")
    for extra in ("", *sorted(PROJECT["optional-dependencies"])):
        try:
            names = needed(requirements(extra))
        except metadata.PackageNotFoundError as error:
            print(f"{extra}: {error.name} is not installed", file=sys.stderr)
            continue
        size = sum(map(installed_bytes, names)) / 1e6
        new, label = (names - core, f"`.[{extra}]`") if extra else (names, "core: `.`")
        print(f"| {label} | {len(names)} | {size:.0f} | {', '.join(sorted(new))} |")
    sizes = {name: installed_bytes(name) / 1e6 for name in core}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    print("largest of the core:", ", ".join(f"{name} {sizes[name]:.0f} MB" for name in largest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
