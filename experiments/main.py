"""Train and evaluate by a named config.

python -m experiments.main --config=NAME [--config.SECTION.SETTING=VALUE ...] [--workdir=FOLDER]
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence

from qpr_jax.cli.program import run_program, use_huge_pages
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


def run(arguments: Sequence[str]) -> int:
    """Train by the flags in `arguments`, the name of the program first; return the exit status."""
    parser = argparse.ArgumentParser(usage=__doc__, allow_abbrev=False, exit_on_error=False)
    add = parser.add_argument
    add("--config", default="", help="A preset, NAME:smoke for a tiny run, or a TOML file.")
    add("--workdir", default="", help="Where the run is kept, and resumed from; else runs/NAME.")
    add("--overwrite", action="store_true", help="Replace the run in the work directory.")
    try:
        options, left = parser.parse_known_args(arguments[1:])
    except argparse.ArgumentError as error:
        raise UserError(f"cannot read the flags: {error}") from error
    changes, spec = read_changes(left), options.config
    if not spec:
        raise UserError(f"expected one of {', '.join(sorted(PRESETS))}, got none", setting="config")
    config = override(load_config(spec), changes)
    name, _, variant = spec.partition(":")
    folder = pathlib.Path(name).stem + f"_{variant}" * bool(variant)
    workdir = options.workdir or os.path.join("runs", folder)
    # Imported late, so that a wrong flag is reported at once.
    from qpr_jax.training.run import train_and_evaluate

    try:
        train_and_evaluate(config, workdir, overwrite=options.overwrite)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run_program(lambda: run(sys.argv)))
