"""Train and evaluate by a named config.

python -m experiments.main --config=NAME [--config.SECTION.SETTING=VALUE ...] [--workdir=FOLDER]

NAME is a preset, NAME:smoke for a tiny run, or the path of a TOML file.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Sequence

from absl import flags

from qpr_jax.cli.program import run_absl, run_program, use_huge_pages
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.training.config import TrainConfig, load_config, override
from qpr_jax.training.presets import PRESETS

_WORKDIR = flags.DEFINE_string(
    "workdir", "", "Where the run is kept, and resumed from. Default: runs/NAME of the config."
)
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace the run in the work directory.")
_HELP = {"--help", "-help", "--helpfull", "--helpshort"}


def read_arguments(arguments: Sequence[str]) -> tuple[str, dict[str, str], list[str]]:
    """The value of `--config`, the changes of `--config.NAME=VALUE`, and the other arguments."""
    spec, changes, others, left = "", dict[str, str](), list[str](), iter(arguments)
    for argument in left:
        name, equals, value = argument.removeprefix("-").removeprefix("-").partition("=")
        if not argument.startswith("-") or name.partition(".")[0] != "config":
            others.append(argument)
        elif name == "config":
            spec = value if equals else next(left, "")
        else:
            changes[name.removeprefix("config.")] = value if equals else next(left, "")
    return spec, changes, others


def workdir_name(spec: str) -> str:
    """The folder in runs/ of a config: NAME, or NAME_smoke."""
    name, _, variant = spec.partition(":")
    return pathlib.Path(name).stem + f"_{variant}" * bool(variant)


def run() -> int:
    """The program: read the flags, then train; the exit status."""

    def start() -> int:
        spec, changes, others = read_arguments(sys.argv)
        if not spec and not _HELP & {*others}:
            raise UserError(
                f"expected one of {', '.join(sorted(PRESETS))}, got none", setting="config"
            )
        config = load_config(spec) if spec else TrainConfig()
        config = override(config, changes)
        flags.FLAGS.set_default("workdir", os.path.join("runs", workdir_name(spec)))
        return run_absl(lambda: train(config), others, hint="--config=")

    return run_program(start)


def train(config: TrainConfig) -> int:
    """Run the experiment; the exit status."""
    # Imported late, so that a wrong flag is reported at once.
    from experiments.wiktionary import make_missing
    from qpr_jax.training.main import train_and_evaluate

    make_missing(config.data.parallel)
    try:
        train_and_evaluate(config, _WORKDIR.value, overwrite=_OVERWRITE.value)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run())
