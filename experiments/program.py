"""What the programs here share: how they log, read flags, end, and get their memory."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable

from absl import app, flags
from absl import logging as absl_logging

from qpr_jax.errors import UserError, told


def run_program(main: Callable[[], int], arguments: list[str], *, hint: str = "--") -> int:
    """Read the flags of `arguments` and call `main`; the exit status.

    hint: what may be missing before an argument that is no flag.
    """

    def run(left: list[str]) -> int:
        if len(left) > 1:
            raise UserError(f"expected flags only, got {left[1]!r}; did you mean {hint}{left[1]}?")
        return main()

    return app.run(run, argv=arguments, flags_parser=_parse_flags) or 0


def told_in_one_line(program: Callable[[], int]) -> int:
    """Call `program`, with one line instead of a traceback for what the user can put right."""
    show_progress()
    try:
        return program()
    except (Exception, KeyboardInterrupt) as error:
        line_and_status = told(error)
        if line_and_status is None:
            raise
        logging.getLogger("qpr_jax").debug("traceback:", exc_info=True)
        print(line_and_status[0], file=sys.stderr)
        return line_and_status[1]


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
