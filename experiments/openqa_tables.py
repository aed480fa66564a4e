"""The paper's tables 5 and 6 on question-answer logs, under its filter and under ours.

    python -m experiments.openqa_tables                      all rows, then tables
    python -m experiments.openqa_tables --coherence=pairwise the rows of one filter
    python -m experiments.openqa_tables --rebuild            tables from the rows kept

The logs are those of `$QPR_DATA_DIR`/qa_logs. Interrupted anywhere, the same command goes on;
started twice at once, the two share the rows.
"""

from __future__ import annotations

import pathlib
import sys

from absl import flags

from experiments import openqa_rows
from experiments.configs import openqa_sdml
from experiments.openqa_results import write_results
from experiments.paper_numbers import OPEN_DOMAIN
from experiments.trials import finish_study, make_rows
from qpr_jax.cli.program import run_absl, use_huge_pages
from qpr_jax.data.sources import find_logs
from qpr_jax.distant import content_hash
from qpr_jax.distant.method import LEAST

_HERE = pathlib.Path(__file__).parent.parent

_COHERENCE = flags.DEFINE_enum("coherence", None, list(LEAST), "Only the rows of this filter.")
_SEEDS = flags.DEFINE_integer("seeds", 1, "Trainings of each row.", lower_bound=1)
_WORKDIR = flags.DEFINE_string("workdir", "runs/openqa_tables", "Where the rows are trained.")
_RESULTS = flags.DEFINE_string(
    "results", str(_HERE / "results" / "openqa"), "Where rows are kept, and tables are made."
)
_REBUILD = flags.DEFINE_bool("rebuild", False, "Train nothing.")


def main() -> int:
    """Make rows, then tables; the exit status."""
    results, workdir = pathlib.Path(_RESULTS.value), pathlib.Path(_WORKDIR.value)

    def make() -> list[str]:
        failed: list[str] = []
        if _REBUILD.value:
            return failed
        path = find_logs()
        data = content_hash(path)
        for coherence in [_COHERENCE.value] if _COHERENCE.value else LEAST:
            names = [name for _, name, _ in OPEN_DOMAIN[5].rows]
            if coherence == openqa_sdml.get_config().data.coherence:
                names.append(openqa_rows.FULL)
            rows = [
                openqa_rows.openqa_row(name, coherence, seed, workdir)
                for seed in range(_SEEDS.value)
                for name in names
                if seed == 0 or name != openqa_rows.FULL
            ]
            failed += make_rows(rows, workdir / coherence, results / coherence, path, data)
        return failed

    return finish_study(make, write_results, results)


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run_absl(main, sys.argv))
