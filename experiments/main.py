"""Train and evaluate by a named config: python -m experiments.main --config=quora_sdml."""

from __future__ import annotations

import logging
import os
import pathlib
import re
import sys

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from qpr_jax.errors import UserError

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


def main(argv: list[str]) -> int:
    """Run the experiment; the exit status."""
    if len(argv) > 1:
        raise UserError(f"expected flags only, got {argv[1]!r}; did you mean --config={argv[1]}?")
    # Imported late, so that a wrong flag is told at once.
    from qpr_jax.training.loop import Interrupted
    from qpr_jax.training.run import train_and_evaluate

    try:
        train_and_evaluate(_CONFIG.value, _WORKDIR.value)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


def run() -> int:
    """The program, with one line instead of a traceback for what the user can put right."""
    show_progress()
    try:
        arguments, name = resolve(sys.argv)
        flags.FLAGS.set_default("workdir", os.path.join("runs", name))
        return app.run(main, argv=arguments, flags_parser=_parse_flags) or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    except OSError as error:
        logging.getLogger("qpr_jax").debug("traceback:", exc_info=True)
        print(f"error: {error}; the same command goes on when this is put right", file=sys.stderr)
    return 1


def show_progress() -> None:
    """Show what the project logs, without the details of the libraries it uses."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    ours = logging.getLogger("qpr_jax")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(logging.INFO)
    absl_logging.set_verbosity(absl_logging.WARNING)


def _parse_flags(arguments: list[str]) -> list[str]:
    """The arguments that are no flags; UserError where a flag is wrong."""
    try:
        return flags.FLAGS(arguments)
    except (flags.Error, AttributeError, TypeError, ValueError) as error:
        # ml_collections gives a quoted quotation of several lines.
        reason = re.sub(r"\\n|[\\'\"\s]+", " ", str(error)).strip()
        raise UserError(f"cannot read the flags: {reason}") from error


def use_huge_pages() -> None:
    """Start the program anew with huge pages for large arrays, where glibc can give them.

    On CPU XLA takes the memory of a step from the system and gives it back after, each time:
    touching it for the first time in pages of 4 KiB costs a quarter of a step
    (`benchmarks/train_step.py` with and without the variable).
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run())
