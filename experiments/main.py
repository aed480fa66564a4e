"""Train and evaluate by a named config.

python -m experiments.main --config=NAME [--config.SECTION.SETTING=VALUE ...] [--workdir=FOLDER]
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence

from absl import flags

from qpr_jax.cli.program import run_program, use_huge_pages
from qpr_jax.errors import Interrupted, UserError, did_you_mean, printable
from qpr_jax.training.config import load_config, override
from qpr_jax.training.presets import check_spec

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
            near = did_you_mean(name, [f"--{flag}" for flag in FLAGS])
            raise UserError(f"expected --config.SETTING=VALUE, got {argument!r}{near}")
        changes[name.removeprefix("--config.")] = value if equals else next(left, "")
    return changes


@contextlib.contextmanager
def _usage() -> Iterator[None]:
    """Context in which a UserError ends the program with status 2, as a wrong option of `qpr`."""
    try:
        yield
    except UserError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        sys.exit(2)


def run(arguments: Sequence[str]) -> int:
    """Train by the flags in `arguments`, the name of the program first; return the exit status."""
    FLAGS.set_gnu_getopt(True)
    with _usage():
        try:
            left = FLAGS(arguments, known_only=True)[1:]
        except flags.Error as error:
            raise UserError(f"cannot read the flags: {' '.join(str(error).split())}") from error
        if "--help" in left:
            print(__doc__, FLAGS, sep="\n")
            return 0
        changes, spec = read_changes(left), CONFIG.value
        check_spec(spec)
    config = load_config(spec)
    with _usage():
        config = override(config, changes)
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
