"""Which loss for which task: classification, mining and retrieval, one encoder and one budget.

    python -m experiments.losses_by_task                        all rows, then the page
    python -m experiments.losses_by_task --rows=sdml,ranking    some rows
    python -m experiments.losses_by_task --rebuild              the page from the rows kept

The tasks and their parts are those of `qpr splits` on the Quora pairs, made first, in `--workdir`.
Each row is kept in `results/losses_by_task/rows/` when it is done; interrupted anywhere, the same
command goes on.
"""

from __future__ import annotations

import logging
import pathlib
import sys

from absl import flags

from experiments.losses_by_task_results import write_results
from experiments.losses_by_task_rows import ROWS, row_config, task_row, training_pairs
from experiments.rows import finish_study, make_rows
from qpr_jax.cli.program import run_absl, use_huge_pages
from qpr_jax.data.quora import read_quora
from qpr_jax.data.sources import find_quora
from qpr_jax.data.task_splits import Sizes, make_tasks, write_tasks
from qpr_jax.files import locked, sha256_of

_HERE = pathlib.Path(__file__).parent.parent

_ROWS = flags.DEFINE_list("rows", [], "Only these rows.")
_WORKDIR = flags.DEFINE_string("workdir", "runs/losses_by_task", "Where the rows are trained.")
_RESULTS = flags.DEFINE_string(
    "results",
    str(_HERE / "results" / "losses_by_task"),
    "Where rows are kept, and the page is made.",
)
_REBUILD = flags.DEFINE_bool("rebuild", False, "Train nothing.")


def main() -> int:
    """Make the parts, rows, then the page; the exit status."""
    results, workdir = pathlib.Path(_RESULTS.value), pathlib.Path(_WORKDIR.value)
    names, parts = _ROWS.value or [*ROWS], workdir / "parts"
    for name in names:
        row_config(name, parts)

    def make() -> list[str]:
        if _REBUILD.value:
            return []
        with locked(workdir / ".parts.lock", wait=True):
            if not parts.exists():
                path = find_quora(log=logging.getLogger("qpr_jax").info)
                write_tasks(parts, make_tasks(read_quora(path), Sizes()))
        rows = [task_row(name, workdir, parts) for name in names]
        path = training_pairs(parts)
        return make_rows(rows, workdir, results, path, sha256_of(path))

    return finish_study(make, write_results, results)


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run_absl(main, sys.argv))
