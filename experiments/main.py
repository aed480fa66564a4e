"""Train and evaluate by a named config.

python -m experiments.main --config=NAME [--config.SECTION.SETTING=VALUE ...] [--workdir=FOLDER]
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Sequence

import click

from qpr_jax.cli.program import run_program, use_huge_pages
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.training.config import load_config, override


@click.command(help=__doc__, context_settings={"ignore_unknown_options": True})
@click.option("--config", default="", help="A preset, NAME:smoke for a tiny run, or a TOML file.")
@click.option("--workdir", help="Where the run is kept, and resumed from.  [default: runs/NAME]")
@click.option("--overwrite", is_flag=True, help="Replace the run in the work directory.")
@click.argument("changes", nargs=-1, type=click.UNPROCESSED, metavar="")
def train(config: str, workdir: str | None, overwrite: bool, changes: Sequence[str]) -> int:
    """Train by a config and changes of it; return the exit status."""
    settings = override(load_config(config), read_changes(changes))
    name, _, variant = config.partition(":")
    folder = pathlib.Path(name).stem + f"_{variant}" * bool(variant)
    # Imported late, so that a wrong option is reported at once.
    from qpr_jax.training.main import train_and_evaluate

    try:
        train_and_evaluate(settings, workdir or os.path.join("runs", folder), overwrite=overwrite)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


def read_changes(arguments: Sequence[str]) -> dict[str, str]:
    """The changes of `--config.SETTING=VALUE`, or `--config.SETTING VALUE`, by dotted name."""
    changes, left = dict[str, str](), iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        if not name.startswith("--config."):
            raise UserError(f"expected --config.SETTING=VALUE, got {argument!r}")
        changes[name.removeprefix("--config.")] = value if equals else next(left, "")
    return changes


def run_command(command: click.Command, arguments: Sequence[str]) -> int:
    """Run a command; return its exit status. UserError for wrong arguments."""
    try:
        return command.main([*arguments], standalone_mode=False) or 0
    except click.ClickException as error:
        raise UserError(error.format_message()) from None
    except click.Abort:  # Ctrl-C
        raise KeyboardInterrupt from None


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run_program(lambda: run_command(train, sys.argv[1:])))
