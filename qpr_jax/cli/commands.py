"""All commands of `qpr`, in one group."""

from __future__ import annotations

import io
import signal
import sys

import click

from qpr_jax.cli import (
    calibrate,
    clusters,
    duplicates,
    errors,
    evaluate,
    extend,
    indexes,
    negatives,
    presets,
    rerank,
    review,
    sample,
    serve,
    splits,
    train,
)
from qpr_jax.errors import UserError

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(context_settings=_SETTINGS)
@click.version_option(package_name="qpr_jax")
def qpr() -> None:
    """Find questions with the same meaning among those already asked.

    FOLDER is a folder that `qpr train`, `python -m experiments.main` or `qpr index` wrote.
    Questions are read from files, or from standard input for "-": lines, CSV, TSV, JSON lines,
    JSON, Parquet or Arrow, compressed with gzip or zstd or not.
    """


_MODULES = (
    *(sample, train, presets, splits, clusters, indexes, extend, duplicates, review, calibrate),
    *(negatives, rerank, evaluate, errors, serve),
)
for module in _MODULES:
    for command in vars(module).values():
        if isinstance(command, click.Command):
            qpr.add_command(command)


def run() -> int:
    """Run the command that the arguments of the program name; the exit status."""
    if sys.stdout is None:
        raise UserError("standard output is closed", remedy="send it to a file or to /dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        return qpr.main(standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:  # Ctrl-C before the command began
        print("stopped: nothing was changed", file=sys.stderr)
        return 128 + signal.SIGINT
