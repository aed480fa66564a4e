"""How many MiB the files of encoders take, with their re-rankers.

    python -m benchmarks.run_sizes runs/quora_sdml open_student minilm

Of a run these are the files of `export/`, which a search needs.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from qpr_jax.cli.program import run_program
from qpr_jax.encoders.load import encoder_folder


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("encoders", nargs="+", help="folders of runs, or names")
    print("| encoder | MiB |\n|---|---:|")
    for named in parser.parse_args().encoders:
        folder = encoder_folder(named)
        exported = folder / "export"
        files = (exported if exported.is_dir() else folder).rglob("*")
        size = sum(path.stat().st_size for path in files if path.is_file())
        print(f"| {pathlib.Path(named).name} | {size / 2**20:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
