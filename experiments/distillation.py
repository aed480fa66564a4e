"""What makes a student better, and what it costs: rows, a table, quality against speed.

    python -m experiments.distillation                       all rows, then the page
    python -m experiments.distillation --rows=base,minilm    some rows
    python -m experiments.distillation --speed               the speeds of all rows made, in turns
    python -m experiments.distillation --rebuild             the page from the rows kept

Needs the extras `minilm` and `lexical`. Each row is kept in `results/distillation/rows/` when it
is done; interrupted anywhere, the same command goes on. Speeds want a machine to themselves.
"""

from __future__ import annotations

import logging
import pathlib
import sys

from absl import flags

from experiments.distillation_results import SPEEDS, write_results
from experiments.distillation_rows import (
    OTHERS,
    ROWS,
    UNTRAINED,
    distillation_row,
    measured_speeds,
    row_config,
)
from experiments.rows import finish_study, make_rows
from qpr_jax.cli.program import run_absl, use_huge_pages
from qpr_jax.data.sources import find_quora
from qpr_jax.files import read_json, sha256_of, write_json

_HERE = pathlib.Path(__file__).parent.parent

_ROWS = flags.DEFINE_list("rows", [], "Only these rows.")
_WORKDIR = flags.DEFINE_string("workdir", "runs/distillation", "Where the rows are trained.")
_RESULTS = flags.DEFINE_string(
    "results", str(_HERE / "results" / "distillation"), "Where rows are kept, and the page is made."
)
_SPEED = flags.DEFINE_bool("speed", False, "Time the encoders of the rows made; train nothing.")
_REBUILD = flags.DEFINE_bool("rebuild", False, "Train nothing.")


def main() -> int:
    """Make rows, then the page; the exit status."""
    results, workdir = pathlib.Path(_RESULTS.value), pathlib.Path(_WORKDIR.value)
    names = _ROWS.value or [*UNTRAINED, *OTHERS, *ROWS]
    for name in names:
        if name not in UNTRAINED:
            row_config(name)

    def make() -> list[str]:
        if _REBUILD.value:
            return []
        if _SPEED.value:
            path = results / SPEEDS
            known = read_json(path) if path.exists() else {}
            write_json(path, known | measured_speeds(names, workdir, find_quora()))
            return []
        rows = [distillation_row(name, workdir) for name in names]
        path = find_quora(log=logging.getLogger("qpr_jax").info)
        return make_rows(rows, workdir, results, path, sha256_of(path))

    return finish_study(make, write_results, results)


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run_absl(main, sys.argv))
