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

import pathlib
import sys

from absl import flags

from experiments import quora_rows
from experiments.paper_numbers import TABLES
from experiments.paper_results import write_results
from experiments.program import run_program, told_in_one_line, use_huge_pages
from qpr_jax.data.sources import find_quora
from qpr_jax.errors import UserError
from qpr_jax.files import locked, read_json, sha256_of

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


def make_rows(
    wanted: list[tuple[str, int]], workdir: pathlib.Path, results: pathlib.Path
) -> list[str]:
    """Make the rows that are not done, but for those that another process makes.

    Returns the rows that could not be made, each with the reason.
    """
    path = find_quora("", log=quora_rows.log.info)
    data = sha256_of(path)
    failed = []

    def folder(row: tuple[str, int]) -> pathlib.Path:
        return results / "rows" / quora_rows.row_name(*row)

    for at, (name, seed) in enumerate(wanted):
        kept = folder((name, seed))
        with locked(workdir / f".{kept.name}.lock") as ours:
            if quora_rows.is_done(kept, name, seed, data):
                continue
            if not ours:
                quora_rows.log.info("%s is being made by another process", kept.name)
                continue
            left = [row for row in wanted[at:] if not quora_rows.is_done(folder(row), *row, data)]
            quora_rows.log.info("%s; next: %s", _left(left, results), kept.name)
            try:
                if name in quora_rows.LEXICAL:
                    quora_rows.make_lexical_row(name, path, kept)
                else:
                    home = workdir.parent if name in quora_rows.CONFIGS else workdir
                    quora_rows.make_row(name, seed, home / kept.name, kept)
            except UserError as error:
                quora_rows.log.error("%s: %s", kept.name, error)
                failed.append(f"{kept.name}: {error}")
    return failed


def _left(left: list[tuple[str, int]], results: pathlib.Path) -> str:
    """How many rows are left, and how long training them takes if they are like those kept."""
    timings = [
        report["timing"] | report["settings"]
        for report in map(read_json, (results / "rows").glob("[!.]*/report.json"))
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

    if len(argv) > 1:
        raise UserError(f"expected flags only, got {argv[1]!r}; did you mean --{argv[1]}?")
    results = pathlib.Path(_RESULTS.value)
    failed: list[str] = []
    wanted = wanted_rows(_TABLE.value, _ROWS.value, _SEEDS.value)
    try:
        if not _REBUILD.value:
            failed = make_rows(wanted, pathlib.Path(_WORKDIR.value), results)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    with locked(results / ".pages.lock") as ours:
        if ours:
            write_results(results)
            quora_rows.log.info("see %s", results / "README.md")
    if failed:
        raise UserError(f"{len(failed)} rows could not be made: {'; '.join(failed)}")
    return 0


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(told_in_one_line(lambda: run_program(main, sys.argv)))
