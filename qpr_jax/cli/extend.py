"""The command `qpr extend`: an encoder with added words for an index that is there."""

from __future__ import annotations

import logging
from typing import Any

import click

from qpr_jax.cli.command import Command
from qpr_jax.cli.options import NamedPath

log = logging.getLogger("qpr_jax")


@click.command(cls=Command, stopped="{folder} has its encoder of before, or the whole new one")
@click.argument("folder", type=NamedPath(file_okay=False))
@click.option(
    "--run",
    required=True,
    type=NamedPath(),
    help="The run that added words to the encoder of FOLDER.",
)
def extend(folder: str, run: str) -> dict[str, Any]:
    """Give an index an encoder with another language.

    No question is encoded again. A program that serves FOLDER must be started again. RUN is made
    by `qpr train RUN --config add_language --set encoder.pretrained=ENGLISH`.

    Example: qpr extend my_index --run runs/german
    """
    from qpr_jax.extend import extend_index

    extended = extend_index(folder, run)
    log.info("%s: %s", folder, "has the new encoder" if extended else "had this encoder already")
    return {"folder": folder, "extended": extended}
