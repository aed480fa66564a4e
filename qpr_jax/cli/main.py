"""The command `qpr`: train, encode, index, search and keep an index up to date.

Exit codes: 0 done; 1 a mistake that the user can put right (one line says which), or nobody reads
the output any more; 2 a wrong command or option; 128 and the signal's number where a signal came.
"""

from __future__ import annotations

import io
import sys

import click

from qpr_jax.cli import clusters, errors, indexes, mine, serve, splits, train
from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="qpr_jax")
def qpr() -> None:
    """Find the questions already asked that mean the same.

    FOLDER is what `qpr train`, `python -m experiments.main` or `qpr index` made. Questions are
    read from files or, for "-", from standard input: lines, TSV, CSV or JSON lines (the last three
    with `question` and, if you like, `id`), gzip too.
    """


for module in (train, splits, clusters, indexes, mine, errors, serve):
    for command in vars(module).values():
        if isinstance(command, click.Command):
            qpr.add_command(command)


def main() -> int:
    """The program; the exit status."""

    def start() -> int:
        if sys.stdout is None:
            raise UserError("standard output is closed; send it to a file or to /dev/null")
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
