"""How long the code of each guide takes, from top to bottom, without what the pages leave out.

    python -m benchmarks.guide_times
    python -m benchmarks.guide_times docs/train.md

Runs what `tests/test_guides.py` runs, in an empty folder a page, so it needs the extra `test` and,
for some pages, the package of all-MiniLM-L6-v2, Java and a server of Milvus.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
import tempfile
import time

from qpr_jax.cli.program import run_program
from tests.test_guides import PAGES, check, is_nightly


def main() -> int:
    """Print a row for each page: the seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", default=[page for page in PAGES if is_nightly(page)])
    print("| page | s |\n|---|---:|")
    for page in parser.parse_args().pages:
        with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
            os.environ["XDG_CACHE_HOME"] = f"{name}/.cache"  # not the user's
            start = time.monotonic()
            check(page, pathlib.Path(name))
            print(f"| {page} | {time.monotonic() - start:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
