"""Train and evaluate by a named config: python -m experiments.main --config=quora_sdml."""

from __future__ import annotations

import logging
import os
import pathlib
import sys
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from qpr_jax.cli.program import run_absl, run_program, use_huge_pages
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.training.config import TrainConfig, flatten
from qpr_jax.training.overrides import from_flat, load_config, require_name
from qpr_jax.training.presets import PRESETS

log = logging.getLogger("qpr_jax")

_WORKDIR = flags.DEFINE_string(
    "workdir", "", "Where the run is kept, and resumed from. Default: runs/NAME of the config."
)
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace the run in the folder.")
_HELP = {"--help", "-help", "--helpfull", "--helpshort"}


def config_argument(arguments: list[str]) -> tuple[str, list[str]]:
    """The value of `--config` (the last, if there are several), and the other arguments."""
    spec, others, left = "", [], iter(arguments)
    for argument in left:
        if argument in ("--config", "-config"):
            spec = next(left, "")
        elif argument.startswith(("--config=", "-config=")):
            spec = argument.partition("=")[2]
        else:
            others.append(argument)
    return spec, others


def workdir_name(spec: str) -> str:
    """The folder in runs/ of a config: NAME, or NAME_smoke."""
    name, _, variant = spec.partition(":")
    return pathlib.Path(name).stem + f"_{variant}" * bool(variant)


def as_flags(config: TrainConfig) -> ConfigDict:
    """The config as nested dictionaries for `config_flags`; several values are one text."""
    nested: dict[str, Any] = {}
    for name, value in flatten(config).items():
        section, _, last = name.rpartition(".")
        text = ",".join(map(str, value)) if isinstance(value, tuple) else value
        (nested.setdefault(section, {}) if section else nested)[last] = text
    return ConfigDict(nested)


def from_flags(values: ConfigDict) -> TrainConfig:
    """The config that the parsed flags describe."""
    return from_flat({name: _value(values, name) for name in flatten(TrainConfig())})


def _value(values: ConfigDict, name: str) -> Any:
    for part in name.split("."):
        values = values[part]
    return values


def run() -> int:
    """The program: read the flags, then train; the exit status."""

    def start() -> int:
        spec, arguments = config_argument(sys.argv)
        if not spec and not _HELP & {*arguments}:
            raise UserError(
                f"expected one of {', '.join(sorted(PRESETS))}, got none", setting="config"
            )
        config = load_config(spec, python_files=True) if spec else TrainConfig()
        for argument in arguments:
            if argument.lstrip("-").startswith("config."):
                require_name(argument.lstrip("-").removeprefix("config.").partition("=")[0])
        values = config_flags.DEFINE_config_dict(
            "config", as_flags(config), help_string="A preset or a file.", sys_argv=arguments
        )
        flags.FLAGS.set_default("workdir", os.path.join("runs", workdir_name(spec)))
        return run_absl(lambda: train(from_flags(values.value)), arguments, hint="--config=")

    return run_program(start)


def train(config: TrainConfig) -> int:
    """Run the experiment; the exit status."""
    # Imported late, so that a wrong flag is reported at once.
    from qpr_jax.training.main import train_and_evaluate

    try:
        train_and_evaluate(config, _WORKDIR.value, overwrite=_OVERWRITE.value)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(run())
