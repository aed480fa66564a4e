"""The paper's tables on the Quora pairs: every row trained, the results beside the paper's.

    python -m experiments.paper_tables                      all rows, then tables and plots
    python -m experiments.paper_tables --table=3 --seeds=3  the rows of one table, three seeds each
    python -m experiments.paper_tables --rows=mask,even     some rows
    python -m experiments.paper_tables --rebuild            tables and plots from the rows kept

Each row is trained in its own folder of `--workdir` and kept in `results/quora/rows/` when it is
done; interrupted anywhere, the same command goes on. Started twice at once, the two share the rows.
"""

from __future__ import annotations

import pathlib
import sys

from absl import flags

from experiments import quora_rows
from experiments.paper_results import TABLES, write_results
from experiments.program import run_program, told_in_one_line, use_huge_pages
from qpr_jax.errors import UserError
from qpr_jax.files import read_json

RESULTS = pathlib.Path(__file__).parent.parent / "results" / "quora"

_TABLE = flags.DEFINE_enum("table", None, [str(n) for n in TABLES], "Only this table's rows.")
_ROWS = flags.DEFINE_list("rows", [], "Only these rows.")
_SEEDS = flags.DEFINE_integer("seeds", 1, "Trainings of each row.", lower_bound=1)
_WORKDIR = flags.DEFINE_string("workdir", "runs/paper_tables", "Where the rows are trained.")
_REBUILD = flags.DEFINE_bool("rebuild", False, "Train nothing.")


def wanted_rows(table: str | None, names: list[str], seeds: int) -> list[tuple[str, int]]:
    """(name, seed) of the rows to make, in order, the first seeds of all first."""
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


def make_rows(wanted: list[tuple[str, int]], workdir: pathlib.Path, results: pathlib.Path) -> None:
    """Make the rows that are not done; one that another process makes is left to it."""
    for at, (name, seed) in enumerate(wanted):
        kept = results / "rows" / quora_rows.row_name(name, seed)
        if quora_rows.is_done(kept, name, seed):
            continue
        left = [
            row
            for row in wanted[at:]
            if not quora_rows.is_done(results / "rows" / quora_rows.row_name(*row), *row)
        ]
        quora_rows.log.info("%s; next: %s, seed %d", _left(left, results), name, seed)
        if name in quora_rows.LEXICAL:
            quora_rows.make_lexical_row(name, kept)
            continue
        try:
            quora_rows.make_row(name, seed, workdir / quora_rows.row_name(name, seed), kept)
        except UserError as error:
            if "another process works" not in str(error):
                raise
            quora_rows.log.info("%s is being made by another process", name)


def _left(left: list[tuple[str, int]], results: pathlib.Path) -> str:
    """How many rows are left, and how long training them takes if they are like those kept."""
    timings = [
        report["timing"] | report["settings"]
        for report in map(read_json, (results / "rows").glob("*/report.json"))
        if "timing" in report  # not that of a lexical row
    ]
    if not timings:
        return f"{len(left)} rows left"
    seconds = [row["steps"] * row["batch_size"] / row["pairs_per_second"] for row in timings]
    minutes = len(left) * sum(seconds) / len(seconds) / 60
    return f"{len(left)} rows left, about {minutes:.0f} minutes of training"


def main(argv: list[str]) -> int:
    """Make rows, then tables; the exit status."""
    from qpr_jax.training.loop import Interrupted

    try:
        if not _REBUILD.value:
            wanted = wanted_rows(_TABLE.value, _ROWS.value, _SEEDS.value)
            make_rows(wanted, pathlib.Path(_WORKDIR.value), RESULTS)
        write_results(RESULTS)
        quora_rows.log.info("see %s", RESULTS / "README.md")
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(told_in_one_line(lambda: run_program(main, sys.argv)))
