"""Train and evaluate by a named config.

python -m experiments.main --config=NAME [--config.SECTION.SETTING=VALUE ...] [--workdir=FOLDER]
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Sequence

from absl import flags

from qpr_jax.cli.program import run_program, use_huge_pages
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.training.config import load_config, override
from qpr_jax.training.presets import PRESETS

FLAGS = flags.FlagValues()
CONFIG = flags.DEFINE_string(
    "config", "", "A preset, NAME:smoke for a tiny run, or a TOML file.", flag_values=FLAGS
)
WORKDIR = flags.DEFINE_string(
    "workdir", "", "Where the run is kept, and resumed from; runs/NAME if empty.", flag_values=FLAGS
)
OVERWRITE = flags.DEFINE_bool(
    "overwrite", False, "Replace the run in the work directory.", flag_values=FLAGS
)


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
    FLAGS.set_gnu_getopt(True)
    try:
        left = FLAGS(arguments, known_only=True)[1:]
    except flags.Error as error:
        raise UserError(f"cannot read the flags: {' '.join(str(error).split())}") from error
    if "--help" in left:
        print(__doc__, FLAGS, sep="\n")
        return 0
    changes, spec = read_changes(left), CONFIG.value
    if not spec:
        raise UserError(f"expected one of {', '.join(sorted(PRESETS))}, got none", setting="config")
    config = override(load_config(spec), changes)
    name, _, variant = spec.partition(":")
    folder = pathlib.Path(name).stem + f"_{variant}" * bool(variant)
    workdir = WORKDIR.value or os.path.join("runs", folder)
    # Imported late, so that a wrong flag is reported at once.
    from qpr_jax.training.run import train_and_evaluate

    try:
        train_and_evaluate(config, workdir, overwrite=OVERWRITE.value)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run_program(lambda: run(sys.argv)))
