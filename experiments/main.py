"""Train and evaluate by a named config: python -m experiments.main --config=quora_sdml."""

from __future__ import annotations

import os
import pathlib
import sys

from absl import flags
from ml_collections import config_flags

from qpr_jax.cli.program import run_absl, run_program, use_huge_pages
from qpr_jax.errors import Interrupted, UserError

CONFIGS = pathlib.Path(__file__).parent / "configs"

_CONFIG = config_flags.DEFINE_config_file(
    "config", lock_config=True, help_string="Name of a file in experiments/configs/, or a path."
)
_WORKDIR = flags.DEFINE_string(
    "workdir", "", "Where the run is kept, and resumed from. Default: runs/NAME of the config."
)


def known_configs() -> list[str]:
    """Names of the configs that come with the project."""
    return sorted(path.stem for path in CONFIGS.glob("[!_]*.py"))


def resolve(arguments: list[str]) -> tuple[list[str], str]:
    """Turn --config=NAME into the path of its file; the arguments, and the name of the config.

    Raises:
      UserError: no config is given, or none has this name.
    """
    resolved, name = list(arguments), ""
    for i, argument in enumerate(arguments):
        if argument in ("--config", "-config") and i + 1 < len(arguments):
            place, value, prefix = i + 1, arguments[i + 1], ""
        elif argument.startswith(("--config=", "-config=")):
            place, value, prefix = i, argument.partition("=")[2], "--config="
        else:
            continue
        path = pathlib.Path(value)
        if path.suffix != ".py":
            path = CONFIGS / f"{value}.py"
        if not value or not path.is_file():
            raise UserError(
                f"`--config`: expected one of {', '.join(known_configs())}, or the path of a "
                f"Python file, got {value!r}"
            )
        resolved[place], name = f"{prefix}{path}", path.stem
    if not name and not {"--help", "-help", "--helpfull", "--helpshort"} & set(arguments):
        raise UserError(f"`--config`: expected one of {', '.join(known_configs())}, got none")
    return resolved, name


def main() -> int:
    """Run the experiment; the exit status."""
    # Imported late, so that a wrong flag is told at once.
    from qpr_jax.training.main import train_and_evaluate

    try:
        train_and_evaluate(_CONFIG.value, _WORKDIR.value)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


def run() -> int:
    """The program, with one line instead of a traceback for what the user can put right."""

    def start() -> int:
        arguments, name = resolve(sys.argv)
        flags.FLAGS.set_default("workdir", os.path.join("runs", name))
        return run_absl(main, arguments, hint="--config=")

    return run_program(start)


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run())
