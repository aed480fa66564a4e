"""The small English encoder that this package carries: its name, its folder, and the default."""

from __future__ import annotations

import importlib.resources
import logging
import pathlib

NAME = "open_student"  # also of the config that makes it
log = logging.getLogger("qpr_jax")


def packaged_folder() -> pathlib.Path:
    """The folder of the encoder, with its card."""
    return pathlib.Path(str(importlib.resources.files("qpr_jax"))) / "packaged" / NAME


def default_folder() -> pathlib.Path:
    """The folder of the encoder of a call that names none; a log line says so."""
    log.info(
        "encoder: %s, the small English one of this package; more accurate: `--run minilm`, "
        "or `qpr train` on your own questions (docs/how_it_works.md)",
        NAME,
    )
    return packaged_folder()
