"""The paper's claim tested where the truth is known: losses under more and more false negatives.

    python -m experiments.noise             all rows (4 losses, 6 rates, 3 seeds), then the page
    python -m experiments.noise --seeds=1   one seed
    python -m experiments.noise --rebuild   the page from the rows kept

Every row trains `synthetic_sdml` on the same questions and pairs; a rate says how many rows of a
batch have a paraphrase in it that is not known to be one (`qpr_jax/data/synthetic_noise.py`), and
so counts as a negative. Known ones are masked. Interrupted anywhere, the same command goes on;
started twice at once, the two share the rows.
"""

from __future__ import annotations

import pathlib
import sys

from absl import flags

from experiments import noise_rows
from experiments.noise_results import write_results
from experiments.noise_rows import LOSSES, RATES
from experiments.quora_rows import row_name
from experiments.trials import finish_study, make_rows, training_row
from qpr_jax.cli.program import run_absl, use_huge_pages

_HERE = pathlib.Path(__file__).parent.parent

_SEEDS = flags.DEFINE_integer("seeds", 3, "Trainings of each row.", lower_bound=1)
_WORKDIR = flags.DEFINE_string("workdir", "runs/noise", "Where the rows are trained.")
_RESULTS = flags.DEFINE_string(
    "results", str(_HERE / "results" / "noise"), "Where rows are kept, and the page is made."
)
_REBUILD = flags.DEFINE_bool("rebuild", False, "Train nothing.")


def main() -> int:
    """Make rows, then the page; the exit status."""
    results, workdir = pathlib.Path(_RESULTS.value), pathlib.Path(_WORKDIR.value)

    def make() -> list[str]:
        if _REBUILD.value:
            return []
        rows = [
            training_row(
                name := row_name(f"{loss}_{rate}", seed),
                noise_rows.row_config(loss, rate, seed),
                workdir / name,
                kept_steps=20,
            )
            for seed in range(_SEEDS.value)
            for rate in RATES
            for loss in LOSSES
        ]
        return make_rows(rows, workdir, results, pathlib.Path(), None)

    return finish_study(make, write_results, results)


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run_absl(main, sys.argv))
