"""Packages that only some installs have: one line for one that is missing."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator

from qpr_jax.errors import UserError


@contextlib.contextmanager
def needs(what: str, install: str, *, setting: str = "") -> Iterator[None]:
    """Import packages in here that an install may lack; UserError with the command for pip.

    Example:
      >>> with needs("`qpr serve`", ".[serve]"):
      ...     import uvicorn

    Args:
      what: what needs them, as the message begins.
      install: what pip installs: an extra of the checkout, as `.[serve]`, or a package.
      setting: the setting or option that asks for them, or "".
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package == "qpr_jax":
            raise  # a bug
        got = "found none" if isinstance(error, ModuleNotFoundError) else f"got an error ({error})"
        place = " in a checkout" if install.startswith(".") else ""
        raise UserError(
            f"{what}: expected the package {package or '?'}, {got}",
            setting=setting,
            remedy=f"pip install {shlex.quote(install)}{place}",
        ) from None
