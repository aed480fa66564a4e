"""The command `qpr`: train, encode, index, search and keep an index up to date.

Exit codes: 0 success; 1 an error that the user can fix (one line describes it), or a closed output
pipe; 2 a wrong command or option; 128 plus the number of a signal that ended the program.
"""

from __future__ import annotations

import io
import sys

import click

from qpr_jax.cli import (
    clusters,
    errors,
    evaluate,
    indexes,
    mine,
    negatives,
    rerank,
    serve,
    splits,
    train,
)
from qpr_jax.cli.program import run_program
from qpr_jax.cli.spelling import command_spelling
from qpr_jax.errors import UserError, set_spelling

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(context_settings=_SETTINGS)
@click.version_option(package_name="qpr_jax")
@click.pass_context
def qpr(context: click.Context) -> None:
    """Find questions with the same meaning among those already asked.

    FOLDER is a folder that `qpr train`, `python -m experiments.main` or `qpr index` wrote.
    Questions are read from files, or from standard input for "-": lines, or TSV, CSV, JSON lines or
    Parquet with `question` and, optionally, `id`. They may be compressed with gzip or zstd.
    """
    set_spelling(command_spelling(qpr.commands[str(context.invoked_subcommand)]))


for module in (train, splits, clusters, indexes, mine, negatives, rerank, evaluate, errors, serve):
    for command in vars(module).values():
        if isinstance(command, click.Command):
            qpr.add_command(command)


def main() -> int:
    """Run the program and return the exit status."""

    def start() -> int:
        if sys.stdout is None:
            raise UserError("standard output is closed", remedy="send it to a file or to /dev/null")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        try:
            return qpr.main(standalone_mode=False) or 0
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except click.Abort:
            raise KeyboardInterrupt from None

    return run_program(start)


if __name__ == "__main__":
    sys.exit(main())
