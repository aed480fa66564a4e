"""What the programs here share: how they read flags."""

from __future__ import annotations

import re
from collections.abc import Callable

from absl import app, flags
from absl import logging as absl_logging

from qpr_jax.errors import UserError


def run_program(main: Callable[[], int], arguments: list[str], *, hint: str = "--") -> int:
    """Read the flags of `arguments` and call `main`; the exit status.

    hint: what may be missing before an argument that is no flag.
    """

    absl_logging.set_verbosity(absl_logging.WARNING)

    def run(left: list[str]) -> int:
        if len(left) > 1:
            raise UserError(f"expected flags only, got {left[1]!r}; did you mean {hint}{left[1]}?")
        return main()

    return app.run(run, argv=arguments, flags_parser=_parse_flags) or 0


def _parse_flags(arguments: list[str]) -> list[str]:
    """The arguments that are no flags; UserError where a flag is wrong."""
    try:
        return flags.FLAGS(arguments)
    except (flags.Error, AttributeError, TypeError, ValueError) as error:
        # ml_collections gives a quoted quotation of several lines.
        reason = re.sub(r"\\n|[\\'\"\s]+", " ", str(error)).strip()
        raise UserError(f"cannot read the flags: {reason}") from error
