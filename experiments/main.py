"""Train and evaluate by a named config.

python -m experiments.main --config=NAME [--config.SECTION.SETTING=VALUE ...] [--workdir=FOLDER]
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

from qpr_jax.cli.program import run_program, use_huge_pages
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.training.config import load_config, override
from qpr_jax.training.presets import PRESETS


def read_changes(arguments: Sequence[str]) -> dict[str, str]:
    """Return the changes of `--config.SETTING=VALUE`, or `--config.SETTING VALUE`."""
    changes, left = dict[str, str](), iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        if not name.startswith("--config."):
            raise UserError(f"expected --config.SETTING=VALUE, got {argument!r}")
        changes[name.removeprefix("--config.")] = value if equals else next(left, "")
    return changes


def run(arguments: Sequence[str]) -> int:
    """Train by the arguments; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="a preset, NAME:smoke for a tiny run, or a TOML file")
    parser.add_argument("--workdir", help="where the run is kept, and resumed from")
    parser.add_argument("--overwrite", action="store_true", help="replace the run there")
    options, left = parser.parse_known_args(arguments)
    changes = read_changes(left)
    if not options.config:
        raise UserError(f"expected one of {', '.join(sorted(PRESETS))}, got none", setting="config")
    config = override(load_config(options.config), changes)
    name, _, variant = options.config.partition(":")
    workdir = options.workdir or f"runs/{pathlib.Path(name).stem}" + f"_{variant}" * bool(variant)
    # Imported late, so that a wrong option is reported at once.
    from qpr_jax.training.main import train_and_evaluate

    try:
        train_and_evaluate(config, workdir, overwrite=options.overwrite)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run_program(lambda: run(sys.argv[1:])))
