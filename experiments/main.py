"""Train and evaluate by a named config.

python -m experiments.main --config=NAME [--config.SECTION.SETTING=VALUE ...] [--workdir=FOLDER]
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Sequence

import click

from qpr_jax.cli.program import run_click, run_program, use_huge_pages
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.training.config import load_config, override
from qpr_jax.training.presets import PRESETS


def read_changes(arguments: Sequence[str]) -> dict[str, str]:
    """The changes of `--config.SETTING=VALUE`, or `--config.SETTING VALUE`, by dotted name."""
    changes, left = dict[str, str](), iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        if not name.startswith("--config."):
            raise UserError(f"expected --config.SETTING=VALUE, got {argument!r}")
        changes[name.removeprefix("--config.")] = value if equals else next(left, "")
    return changes


@click.command(
    "python -m experiments.main",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.option("--config", "spec", help="A preset, NAME:smoke for a tiny run, or a TOML file.")
@click.option("--workdir", help="Where the run is kept, and resumed from.  [default: runs/NAME]")
@click.option("--overwrite", is_flag=True, help="Replace the run in the work directory.")
@click.pass_context
def program(context: click.Context, spec: str | None, workdir: str | None, overwrite: bool) -> int:
    """Train and evaluate by a named config; --config.SETTING=VALUE changes one of its settings."""
    changes = read_changes(context.args)
    if not spec:
        raise UserError(f"expected one of {', '.join(sorted(PRESETS))}, got none", setting="config")
    config = override(load_config(spec), changes)
    name, _, variant = spec.partition(":")
    folder = pathlib.Path(name).stem + f"_{variant}" * bool(variant)
    # Imported late, so that a wrong option is reported at once.
    from experiments.wiktionary import make_missing
    from qpr_jax.training.main import train_and_evaluate

    make_missing(config.data.parallel)
    try:
        train_and_evaluate(config, workdir or os.path.join("runs", folder), overwrite=overwrite)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run_program(lambda: run_click(program, sys.argv[1:])))
