"""The paper's tables on the Quora pairs: every row trained, the results beside the paper's.

    python -m experiments.paper_tables                      all rows, then tables and plots
    python -m experiments.paper_tables --table=3 --seeds=3  the rows of one table, three seeds each
    python -m experiments.paper_tables --rows=mask,even     some rows
    python -m experiments.paper_tables --rows=sdml --results=again  a row anew, to compare
    python -m experiments.paper_tables --rebuild            tables and plots from the rows kept

Each row is trained in its own folder of `--workdir` and kept in `results/quora/rows/` when it is
done; interrupted anywhere, the same command goes on. Started twice at once, the two share the rows.
"""

from __future__ import annotations

import logging
import pathlib
import sys

from absl import flags

from experiments import quora_rows
from experiments.paper_numbers import TABLES
from experiments.paper_results import write_results
from experiments.rows import finish_study, make_rows
from qpr_jax.cli.program import run_absl, use_huge_pages
from qpr_jax.data.sources import find_quora
from qpr_jax.errors import UserError
from qpr_jax.files import sha256_of

_HERE = pathlib.Path(__file__).parent.parent

_TABLE = flags.DEFINE_enum("table", None, [str(n) for n in TABLES], "Only this table's rows.")
_ROWS = flags.DEFINE_list("rows", [], "Only these rows.")
_SEEDS = flags.DEFINE_integer("seeds", 1, "Trainings of each row.", lower_bound=1)
_WORKDIR = flags.DEFINE_string("workdir", "runs/paper_tables", "Where the rows are trained.")
_RESULTS = flags.DEFINE_string(
    "results", str(_HERE / "results" / "quora"), "Where rows are kept, and tables are made."
)
_REBUILD = flags.DEFINE_bool("rebuild", False, "Train nothing.")


def wanted_rows(table: str | None, names: list[str], seeds: int) -> list[tuple[str, int]]:
    """(name, seed) of the rows to make, in order, the first seeds of all first."""
    if names and table:
        raise UserError("`--rows`, `--table`: expected one of the two, got both; leave one out")
    if names:
        chosen = list(names)
    elif table:
        chosen = [name for _, name, _ in TABLES[int(table)].rows]
    else:
        chosen = [*quora_rows.LEXICAL, *quora_rows.ROWS, *quora_rows.CONFIGS]
    for name in chosen:
        if name not in quora_rows.LEXICAL:
            quora_rows.row_config(name)
    return [
        (name, seed)
        for seed in range(seeds)
        for name in chosen
        if seed == 0 or name not in quora_rows.LEXICAL
    ]


def main() -> int:
    """Make rows, then tables; the exit status."""
    results, workdir = pathlib.Path(_RESULTS.value), pathlib.Path(_WORKDIR.value)
    wanted = wanted_rows(_TABLE.value, _ROWS.value, _SEEDS.value)

    def make() -> list[str]:
        if _REBUILD.value:
            return []
        rows = [quora_rows.quora_row(name, seed, workdir) for name, seed in wanted]
        path = find_quora(log=logging.getLogger("qpr_jax").info)
        return make_rows(rows, workdir, results, path, sha256_of(path))

    return finish_study(make, write_results, results)


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run_absl(main, sys.argv))
